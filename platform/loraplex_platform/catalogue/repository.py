"""Statements on adapters."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.db.scope import across_tenants, for_tenant
from loraplex_platform.kit.principal import Principal


class AdapterRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, adapter: Adapter) -> None:
        self._session.add(adapter)
        await self._session.flush()

    async def named(self, principal: Principal, name: str) -> Adapter | None:
        """The tenant's living adapter of this name."""
        own = for_tenant(principal, Adapter)
        return await self._session.scalar(
            own.where(Adapter.name == name, Adapter.removed_at.is_(None))
        )

    async def all_of(self, principal: Principal) -> Sequence[Adapter]:
        own = for_tenant(principal, Adapter).where(Adapter.removed_at.is_(None))
        return (await self._session.scalars(own.order_by(Adapter.name))).all()

    async def living(self, tenant_id: str, name: str) -> Adapter | None:
        """For the operator's commands, who have no principal."""
        return await self._session.scalar(
            across_tenants(Adapter).where(
                Adapter.tenant_id == tenant_id, Adapter.name == name, Adapter.removed_at.is_(None)
            )
        )

    async def living_of_tenant(self, tenant_id: str) -> Sequence[Adapter]:
        statement = across_tenants(Adapter).where(
            Adapter.tenant_id == tenant_id, Adapter.removed_at.is_(None)
        )
        return (await self._session.scalars(statement.order_by(Adapter.name))).all()

    async def bytes_of_tenant(self, tenant_id: str, *, besides: str) -> int:
        """Bytes of the tenant's living versions other than this one; two names of one count once."""
        living = across_tenants(Adapter).where(
            Adapter.tenant_id == tenant_id,
            Adapter.removed_at.is_(None),
            Adapter.version != besides,
        )
        versions = living.with_only_columns(Adapter.version, Adapter.num_bytes).distinct()
        return sum(row.num_bytes for row in await self._session.execute(versions))

    async def ever_of_tenant(self, tenant_id: str) -> Sequence[Adapter]:
        """With those that were removed: what was stored is paid for."""
        statement = across_tenants(Adapter).where(Adapter.tenant_id == tenant_id)
        return (await self._session.scalars(statement.order_by(Adapter.created_at))).all()

    async def is_version_used(self, version: str) -> bool:
        """Whether any tenant has a name for it."""
        living = across_tenants(Adapter).where(
            Adapter.version == version, Adapter.removed_at.is_(None)
        )
        return await self._session.scalar(living.limit(1)) is not None
