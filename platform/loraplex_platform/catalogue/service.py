"""Rules about adapters: judged and stored by content, named within a tenant."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from loraplex_adapters.errors import AdapterError, NameTaken, UnknownName
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore, StoredAdapter
from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.catalogue.registry import Quota, SqlRegistry, no_quota
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}")


class CatalogueService:
    """What an operator may do with a tenant's adapters; running servers see it at once."""

    def __init__(
        self,
        database: Database,
        store: AdapterStore,
        clock: Clock,
        *,
        base_id: str,
        quota: Quota = no_quota,
    ) -> None:
        self._base_id = base_id  # the base model's id, which no adapter can be called
        self._database = database
        self._store = store
        self._registry = SqlRegistry(database, store.report, clock, quota)

    async def add(
        self, tenant_id: str, name: str, folder: Path, *, base_folder: Path, max_rank: int
    ) -> StoredAdapter:
        """Judge and store a PEFT folder, and give it a name that is free."""
        if not NAME.fullmatch(name):
            raise InvalidRequest(f"not an adapter name: {name!r}", param="name")
        if name == self._base_id:
            raise Conflict(f"{name!r} is the base model's name", param="name")
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
        try:
            await self._registry.add(tenant_id, name, stored.version)
        except NameTaken as error:
            raise Conflict(str(error), param="name") from error
        return stored

    async def of_tenant(self, tenant_id: str) -> Sequence[Adapter]:
        async with self._database.reading() as session:
            return await AdapterRepository(session).living_of_tenant(tenant_id)

    async def remove(self, tenant_id: str, name: str) -> None:
        """The name is free again; requests that run go on."""
        try:
            await self._registry.remove(tenant_id, name)
        except UnknownName as error:
            raise NotFound(str(error), param="name") from error
