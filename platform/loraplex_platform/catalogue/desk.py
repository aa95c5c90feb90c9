"""A tenant's requests about adapters that need more than the catalogue: base model and engine."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from loraplex_adapters.store import AdapterStore
from loraplex_engine.client import EngineClient
from loraplex_platform.catalogue.publishing import Published, Quota
from loraplex_platform.catalogue.residency import Residency
from loraplex_platform.catalogue.routes import Address, Routes
from loraplex_platform.catalogue.service import CatalogueService, Entry
from loraplex_platform.config import Settings
from loraplex_platform.db.database import UNREACHABLE, Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Actor, Principal

SWEEP_S = 3600.0
DRAIN_S = 300.0  # how long what runs on a deleted adapter may go on, unless it is said


class AdapterDesk:
    def __init__(
        self,
        catalogue: CatalogueService,
        residency: Residency,
        routes: Routes,
        *,
        base_folder: Path | None,
        max_rank: int,
        folders: tuple[Path, ...] = (),
        max_pins: int = 1,
    ) -> None:
        self.catalogue = catalogue
        self.routes = routes
        self.folders = folders  # of this machine, from which operators may add
        self._max_pins = max_pins
        self._residency = residency
        self._base_folder = base_folder
        self._max_rank = max_rank

    async def add(
        self, principal: Principal, name: str, folder: Path, *, by: Actor, activate: bool
    ) -> Published:
        """Judge a folder and publish it under a name."""
        assert self._base_folder is not None, "an API process knows its base model's folder"
        self.catalogue.check_name(name)
        try:
            stored = await self.catalogue.judge(
                folder, base_folder=self._base_folder, max_rank=self._max_rank
            )
        except InvalidRequest as refusal:
            await self.catalogue.tell_refused(principal, name, refusal)
            raise
        return await self.catalogue.publish(principal, name, stored, by=by, activate=activate)

    async def change(
        self,
        principal: Principal,
        name: str,
        values: Mapping[str, Any],
        *,
        by: Actor,
        revision: int | None,
    ) -> Entry:
        """As the catalogue does it, within the pins that a tenant may have."""
        return await self.catalogue.change(
            principal, name, values, by=by, revision=revision, max_pins=self._max_pins
        )

    async def preload(self, principal: Principal, address: str, *, by: Actor) -> Entry:
        """The version that is addressed, or the name's current one; raises EngineUnavailable."""
        entry = await self.catalogue.get(principal, address)
        number = Address.parse(address).number or entry.name.current
        version = next(each for each in entry.versions if each.number == number)
        await self._residency.preload(version.version, principal.tenant_id)
        await self.catalogue.note_preload(version, by)
        return entry

    async def delete(
        self, principal: Principal, address: str, *, by: Actor, drain_s: float = DRAIN_S
    ) -> None:
        """Nothing new is sent to it; what runs may end within `drain_s`, then it is ended."""
        for version in await self.catalogue.delete(principal, address, by=by):
            await self._residency.drop(version, drain_s)

    async def run(self) -> None:
        """Keeps pins at the engine and the store swept, until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._residency.run())
            tasks.create_task(self._sweep())

    async def _sweep(self) -> None:
        while True:
            with suppress(*UNREACHABLE):  # the next hour is as good
                await self.catalogue.sweep()
            await asyncio.sleep(SWEEP_S)


def open_desk(
    settings: Settings,
    database: Database,
    engine: EngineClient,
    clock: Clock,
    base_id: str,
    quota: Quota,
) -> AdapterDesk:
    """The desk of an API process."""
    routes, store = Routes(database, clock), AdapterStore(settings.adapter_store)
    catalogue = CatalogueService(
        database, store, clock, base_id=base_id, quota=quota, routes=routes
    )
    return AdapterDesk(
        catalogue,
        Residency(database, engine, clock),
        routes,
        base_folder=None if settings.model is None else Path(settings.model),
        max_rank=settings.max_lora_rank,
        folders=tuple(map(Path, settings.adapter_folders)),
        max_pins=settings.max_pinned_adapters,
    )
