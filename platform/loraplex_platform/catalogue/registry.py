"""The database's registry: names per tenant, pointing at versions."""

from collections.abc import Awaitable, Callable

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_adapters.errors import NameTaken, UnknownName
from loraplex_adapters.registry import RegisteredAdapter
from loraplex_adapters.report import LoadReport
from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.ids import new_id

# Called in the transaction that adds a version of so many bytes to a tenant; raises to forbid it.
Quota = Callable[[AsyncSession, str, str, int], Awaitable[None]]


async def no_quota(session: AsyncSession, tenant: str, version: str, num_bytes: int) -> None:
    """Whatever fits the disk."""


class SqlRegistry:
    """Implements adapters.registry.Registry; a tenant is its id. Removed names leave a tombstone."""

    def __init__(
        self,
        database: Database,
        report_of: Callable[[str], LoadReport],
        clock: Clock,
        quota: Quota = no_quota,
    ) -> None:
        self._database = database
        self._report_of = report_of
        self._clock = clock
        self._quota = quota

    async def add(self, tenant: str, name: str, version: str) -> RegisteredAdapter:
        now, report = self._clock.now(), self._report_of(version)
        adapter = Adapter(
            id=new_id("adp"),
            tenant_id=tenant,
            name=name,
            version=version,
            rank=report.rank,
            num_bytes=report.num_bytes,
            manifest=report.to_json(),
            created_at=now,
            updated_at=now,
        )
        try:
            async with self._database.unit_of_work() as session:
                await self._quota(session, tenant, version, report.num_bytes)
                await AdapterRepository(session).add(adapter)
        except IntegrityError as error:
            raise NameTaken(f"there is an adapter {name!r} already", name=name) from error
        return _registered(adapter)

    async def get(self, tenant: str, name: str) -> RegisteredAdapter:
        async with self._database.reading() as session:
            return _registered(await _living(session, tenant, name))

    async def list(self, tenant: str) -> list[RegisteredAdapter]:
        async with self._database.reading() as session:
            adapters = await AdapterRepository(session).living_of_tenant(tenant)
        return [_registered(adapter) for adapter in adapters]

    async def remove(self, tenant: str, name: str) -> RegisteredAdapter:
        async with self._database.unit_of_work() as session:
            adapter = await _living(session, tenant, name)
            adapter.removed_at = self._clock.now()
        return _registered(adapter)

    async def is_used(self, version: str) -> bool:
        async with self._database.reading() as session:
            return await AdapterRepository(session).is_version_used(version)


async def _living(session: AsyncSession, tenant: str, name: str) -> Adapter:
    adapter = await AdapterRepository(session).living(tenant, name)
    if adapter is None:
        raise UnknownName(f"there is no adapter {name!r}", name=name)
    return adapter


def _registered(adapter: Adapter) -> RegisteredAdapter:
    return RegisteredAdapter(adapter.tenant_id, adapter.name, adapter.version)
