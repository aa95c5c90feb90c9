"""Rules about adapters: judged and stored by content, named within a tenant."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from loraplex_adapters.errors import AdapterError
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound
from loraplex_platform.kit.ids import new_id

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}")


class CatalogueService:
    """What an operator may do with a tenant's adapters; running servers see it at once."""

    def __init__(self, database: Database, store: AdapterStore, clock: Clock) -> None:
        self._database = database
        self._store = store
        self._clock = clock

    async def add(
        self, tenant_id: str, name: str, folder: Path, *, base_folder: Path, max_rank: int
    ) -> Adapter:
        """Judge and store a PEFT folder, and give it a name that is free."""
        if not NAME.fullmatch(name):
            raise InvalidRequest(f"not an adapter name: {name!r}", param="name")
        try:
            stored = await asyncio.to_thread(
                lambda: self._store.put(
                    folder,
                    base=BaseModel.from_checkpoint(base_folder.name, base_folder),
                    limits=Limits(max_rank),
                )
            )
        except AdapterError as error:
            raise InvalidRequest(f"{folder}: {error}", param="folder", code=error.code) from error
        now = self._clock.now()
        adapter = Adapter(
            id=new_id("adp"),
            tenant_id=tenant_id,
            name=name,
            version=stored.version,
            rank=stored.report.rank,
            num_bytes=stored.report.num_bytes,
            manifest=stored.report.to_json(),
            created_at=now,
            updated_at=now,
        )
        async with self._database.unit_of_work() as session:
            adapters = AdapterRepository(session)
            if await adapters.living(tenant_id, name) is not None:
                raise Conflict(f"there is an adapter {name!r} already", param="name")
            await adapters.add(adapter)
        return adapter

    async def of_tenant(self, tenant_id: str) -> Sequence[Adapter]:
        async with self._database.reading() as session:
            return await AdapterRepository(session).living_of_tenant(tenant_id)

    async def remove(self, tenant_id: str, name: str) -> None:
        """The name is free again; requests that run go on."""
        async with self._database.unit_of_work() as session:
            adapter = await AdapterRepository(session).living(tenant_id, name)
            if adapter is None:
                raise NotFound(f"there is no adapter {name!r}", param="name")
            adapter.removed_at = self._clock.now()
