"""The database's registry: names per tenant, pointing at versions."""

from collections.abc import Callable

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_adapters.errors import NameTaken, UnknownName
from loraplex_adapters.registry import RegisteredAdapter
from loraplex_adapters.report import LoadReport
from loraplex_platform.audit.trail import changing
from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.catalogue.publishing import Quota, no_quota, publish
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import COMMAND_LINE, Principal


class SqlRegistry:
    """Implements adapters.registry.Registry; a tenant is its id. Removed names leave tombstones."""

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
        now, report, principal = self._clock.now(), self._report_of(version), operator(tenant)
        taken = NameTaken(f"there is an adapter {name!r} already", name=name)
        try:
            async with changing(self._database, COMMAND_LINE.actor, self._clock) as session:
                if await AdapterRepository(session).name(principal, name) is not None:
                    raise taken
                await self._quota(session, tenant, version, report.num_bytes)
                published = await publish(
                    session, principal, name, version, report, now=now, activate=True
                )
        except IntegrityError as error:
            raise taken from error
        return _registered(published.version)

    async def get(self, tenant: str, name: str) -> RegisteredAdapter:
        async with self._database.reading() as session:
            return _registered(await _living(session, tenant, name))

    async def list(self, tenant: str) -> list[RegisteredAdapter]:
        async with self._database.reading() as session:
            adapters = await AdapterRepository(session).living_of_tenant(tenant)
        return [_registered(adapter) for adapter in adapters]

    async def remove(self, tenant: str, name: str) -> RegisteredAdapter:
        principal, now = operator(tenant), self._clock.now()
        async with changing(self._database, COMMAND_LINE.actor, self._clock) as session:
            adapter = await _living(session, tenant, name)
            adapters = AdapterRepository(session)
            row = await adapters.name(principal, name, to_change=True)
            assert row is not None
            for version in await adapters.versions(principal, name):
                version.removed_at = now
            await adapters.delete(row)
        return _registered(adapter)

    async def is_used(self, version: str) -> bool:
        async with self._database.reading() as session:
            return await AdapterRepository(session).is_version_used(version)


def operator(tenant_id: str) -> Principal:
    """An operator's command on a tenant's behalf."""
    return Principal(tenant_id, "", "")


async def _living(session: AsyncSession, tenant: str, name: str) -> Adapter:
    adapter = await AdapterRepository(session).living(tenant, name)
    if adapter is None:
        raise UnknownName(f"there is no adapter {name!r}", name=name)
    return adapter


def _registered(adapter: Adapter) -> RegisteredAdapter:
    return RegisteredAdapter(adapter.tenant_id, adapter.name, adapter.version)
