"""Rules about adapters: judged and stored by content, named within a tenant."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_adapters.errors import AdapterError
from loraplex_adapters.store import AdapterStore, StoredAdapter
from loraplex_platform.audit.trail import changing, note
from loraplex_platform.catalogue.judging import judge_and_store
from loraplex_platform.catalogue.models import Adapter, AdapterName
from loraplex_platform.catalogue.publishing import (
    Published,
    Quota,
    apply_changes,
    no_quota,
    numbers_named,
    point_at,
    publish,
)
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.catalogue.routes import Address, Routes
from loraplex_platform.catalogue.schemas import ADAPTER_NAME
from loraplex_platform.catalogue.upload import refused
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import AdapterEvent, RefusedAdapter
from loraplex_platform.events.outbox import emit
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound
from loraplex_platform.kit.principal import COMMAND_LINE, Actor, Principal
from loraplex_platform.kit.revisions import check_revision

NAME = re.compile(ADAPTER_NAME)
DRAFT_LIFE_S = 6 * 3600.0  # the longest that an upload may take
UNUSED_LIFE_S = 24 * 3600.0  # how long a version that no name has stays on the disk
COMMAND = COMMAND_LINE.actor


class Entry(NamedTuple):
    """A name with versions of its own."""

    name: AdapterName
    versions: Sequence[Adapter]


class CatalogueService:
    """The life of a tenant's adapters; other processes see a change within half a second."""

    def __init__(
        self,
        database: Database,
        store: AdapterStore,
        clock: Clock,
        *,
        base_id: str,
        quota: Quota = no_quota,
        routes: Routes | None = None,
    ) -> None:
        self._base_id = base_id  # the base model's id, which no adapter can be called
        self._database = database
        self._store = store
        self._clock = clock
        self._quota = quota
        self._routes = routes

    def draft(self) -> AbstractContextManager[Path]:
        """A folder for an upload, on the store's disk."""
        return self._store.draft()

    def check_name(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise InvalidRequest(f"not an adapter name: {name!r}", param="name")
        if name == self._base_id:
            raise Conflict(f"{name!r} is the base model's name", param="name")

    async def check_free(self, principal: Principal, name: str) -> None:
        async with self._database.reading(principal) as session:
            if await AdapterRepository(session).name(principal, name) is not None:
                raise Conflict(
                    f"there is an adapter {name!r} already", param="name", code="name_taken"
                )

    async def judge(
        self, folder: Path, *, base_folder: Path, max_rank: int, param: str | None = None
    ) -> StoredAdapter:
        """Judge a PEFT folder and store its content; raises InvalidRequest with the fault's code."""
        try:
            return await asyncio.to_thread(
                judge_and_store, self._store, folder, base_folder, max_rank
            )
        except AdapterError as error:
            raise refused(error, param) from error

    async def publish(
        self, principal: Principal, name: str, stored: StoredAdapter, *, by: Actor, activate: bool
    ) -> Published:
        """Put a stored version under a name, which is made when it is new."""
        self.check_name(name)
        try:
            async with self._changing(by) as session:
                tenant, report = principal.tenant_id, stored.report
                await self._quota(session, tenant, stored.version, report.num_bytes)
                made = await publish(
                    session, principal, name, stored.version, report,
                    now=self._clock.now(), activate=activate,
                )  # fmt: skip
                if made.is_new:
                    payload = AdapterEvent(made.version.id, name, made.version.number)
                    await emit(session, tenant, "adapter.ready", payload, self._clock.now())
                if made.was_activated:
                    await self._tell_active(session, made.name, [made.version])
                return made
        except IntegrityError as error:
            raise Conflict(f"{name!r} was made at the same moment", param="name") from error

    async def add(
        self, tenant_id: str, name: str, folder: Path, *, base_folder: Path, max_rank: int
    ) -> StoredAdapter:
        """Judge and store a PEFT folder, and give it a name that is free."""
        principal = Principal(tenant_id, "", "")
        self.check_name(name)
        await self.check_free(principal, name)
        stored = await self.judge(folder, base_folder=base_folder, max_rank=max_rank)
        await self.publish(principal, name, stored, by=COMMAND, activate=True)
        return stored

    async def of_tenant(self, tenant_id: str) -> Sequence[Adapter]:
        """The version that each name stands for."""
        async with self._database.reading() as session:
            return await AdapterRepository(session).living_of_tenant(tenant_id)

    async def page(
        self, principal: Principal, *, after: str | None = None, limit: int, order: str = ""
    ) -> Sequence[AdapterName]:
        async with self._database.reading(principal) as session:
            return await AdapterRepository(session).names_page(principal, after, limit, order)

    async def get(self, principal: Principal, address: str) -> Entry:
        """A name with all its versions, or with the one that is addressed."""
        where = Address.parse(address)
        async with self._database.reading(principal) as session:
            row = await _found(session, principal, where.name)
            versions = await AdapterRepository(session).versions(principal, where.name)
        if where.number is None:
            return Entry(row, versions)
        return Entry(row, [_numbered(versions, where.number, where.name)])

    async def change(
        self,
        principal: Principal,
        name: str,
        values: Mapping[str, Any],
        *,
        by: Actor,
        revision: int | None = None,
        max_pins: int | None = None,
    ) -> Entry:
        """Set what `values` names: current, canary (number and percent), enabled, pinned, defaults."""
        async with self._changing(by) as session:
            row = await _found(session, principal, name, to_change=True)
            check_revision(row, revision)
            versions = await AdapterRepository(session).versions(principal, name)
            if values.get("pinned") and not row.is_pinned and max_pins is not None:
                await _check_pins(session, principal, max_pins)
            for number in numbers_named(values):
                _numbered(versions, number, name)
            before = row.current
            apply_changes(row, values, self._clock.now())
            if row.current != before:
                await self._tell_active(session, row, versions)
        return Entry(row, versions)

    async def roll_back(self, principal: Principal, name: str, *, by: Actor) -> Entry:
        """End a canary; without one, back to the version before. Running requests are undisturbed."""
        async with self._changing(by) as session:
            row = await _found(session, principal, name, to_change=True)
            versions = await AdapterRepository(session).versions(principal, name)
            if row.canary is not None:
                row.canary = row.canary_percent = None
                row.updated_at = self._clock.now()
            elif row.previous is not None:
                _numbered(versions, row.previous, name)
                point_at(row, row.previous, self._clock.now())
                await self._tell_active(session, row, versions)
            else:
                raise Conflict(f"{name!r} has nothing to go back to", param="name")
        return Entry(row, versions)

    async def delete(self, principal: Principal, address: str, *, by: Actor) -> list[str]:
        """Take a name or one of its versions away; returns the contents that no name has any more."""
        where, now = Address.parse(address), self._clock.now()
        async with self._changing(by) as session:
            adapters = AdapterRepository(session)
            row = await _found(session, principal, where.name, to_change=True)
            gone = await adapters.versions(principal, where.name)
            if where.number is None:
                await adapters.delete(row)
            else:
                gone = [_numbered(gone, where.number, where.name)]
                if where.number in (row.current, row.canary):
                    raise Conflict(f"{address!r} is in use", param="name", code="version_in_use")
                row.previous = None if row.previous == where.number else row.previous
                row.updated_at = now
            for version in gone:
                version.removed_at = now
                self._note(session, version, "removed", by)
            await session.flush()
            contents = sorted({version.version for version in gone})
            return [v for v in contents if not await adapters.is_version_used(v)]

    async def sweep(self, now_s: float | None = None) -> int:
        """Throw away contents that nobody has named for a day, and drafts of dead processes."""
        now_s = time.time() if now_s is None else now_s
        await asyncio.to_thread(self._store.sweep_drafts, DRAFT_LIFE_S, now_s)
        old = await asyncio.to_thread(
            lambda: [
                version
                for version in self._store.versions()
                if self._store.is_older(version, UNUSED_LIFE_S, now_s)
            ]
        )
        num_swept = 0
        for version in old:
            async with self._database.reading() as session:
                is_used = await AdapterRepository(session).is_version_used(version)
            if not is_used:
                await asyncio.to_thread(self._store.delete, version)
                num_swept += 1
        return num_swept

    async def tell_refused(self, principal: Principal, name: str, refusal: InvalidRequest) -> None:
        """An upload is no adapter; nothing of it is kept but this event."""
        payload = RefusedAdapter(name, refusal.code, refusal.message)
        async with self._database.unit_of_work(principal) as session:
            now = self._clock.now()
            await emit(session, principal.tenant_id, "adapter.refused", payload, now)

    async def note_preload(self, version: Adapter, by: Actor) -> None:
        async with self._database.unit_of_work() as session:
            self._note(session, version, "preloaded", by)

    def _note(self, session: AsyncSession, version: Adapter, verb: str, by: Actor) -> None:
        which = {"name": version.name, "number": version.number}
        note(session, version, verb, by, self._clock, which)

    async def _tell_active(
        self, session: AsyncSession, row: AdapterName, versions: Sequence[Adapter]
    ) -> None:
        active = _numbered(versions, row.current, row.name)
        payload = AdapterEvent(active.id, row.name, active.number)
        await emit(session, row.tenant_id, "adapter.activated", payload, self._clock.now())

    @asynccontextmanager
    async def _changing(self, by: Actor) -> AsyncIterator[AsyncSession]:
        async with changing(self._database, by, self._clock) as session:
            yield session
        if self._routes is not None:
            self._routes.forget()


async def _found(
    session: AsyncSession, principal: Principal, name: str, *, to_change: bool = False
) -> AdapterName:
    row = await AdapterRepository(session).name(principal, name, to_change=to_change)
    if row is None:
        raise NotFound(f"there is no adapter {name!r}", param="name", code="unknown_name")
    return row


async def _check_pins(session: AsyncSession, principal: Principal, max_pins: int) -> None:
    names = await AdapterRepository(session).names_page(principal)
    if sum(name.is_pinned for name in names) >= max_pins:
        raise Conflict(
            f"{max_pins} of your adapters may be pinned", param="pinned", code="too_many_pins"
        )


def _numbered(versions: Sequence[Adapter], number: int, name: str) -> Adapter:
    found = next((each for each in versions if each.number == number), None)
    if found is None:
        raise NotFound(
            f"there is no version {number} of {name!r}", param="name", code="unknown_version"
        )
    return found
