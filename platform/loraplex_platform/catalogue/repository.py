"""Statements on adapters."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.catalogue.models import Adapter, AdapterName
from loraplex_platform.db.paging import Sorting
from loraplex_platform.db.scope import across_tenants, change_across_tenants, for_tenant
from loraplex_platform.kit.principal import Principal

NAMES = Sorting(
    AdapterName.name,
    {
        "name": AdapterName.name,
        "versions": AdapterName.last_number,
        "changed": AdapterName.updated_at,
    },
)


class AdapterRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, row: Adapter | AdapterName) -> None:
        self._session.add(row)
        await self._session.flush()

    async def delete(self, name: AdapterName) -> None:
        await self._session.delete(name)
        await self._session.flush()

    async def name(
        self, principal: Principal, name: str, *, to_change: bool = False
    ) -> AdapterName | None:
        """The tenant's name; `to_change` holds it until the transaction ends."""
        own = for_tenant(principal, AdapterName).where(AdapterName.name == name)
        return await self._session.scalar(own.with_for_update() if to_change else own)

    async def names_page(
        self, principal: Principal, after: str | None = None, limit: int = 10_000, order: str = ""
    ) -> Sequence[AdapterName]:
        own = for_tenant(principal, AdapterName)
        return await NAMES.page(self._session, own, order, after, limit)

    async def versions(self, principal: Principal, name: str) -> Sequence[Adapter]:
        """The living versions of a name, oldest first."""
        own = for_tenant(principal, Adapter).where(
            Adapter.name == name, Adapter.removed_at.is_(None)
        )
        return (await self._session.scalars(own.order_by(Adapter.number))).all()

    async def named(self, principal: Principal, name: str) -> Adapter | None:
        """The version that the tenant's name stands for."""
        own = _current(for_tenant(principal, Adapter))
        return await self._session.scalar(own.where(Adapter.name == name))

    async def living(self, tenant_id: str, name: str) -> Adapter | None:
        """The version a name stands for; for the operator's commands, who have no principal."""
        statement = _current(across_tenants(Adapter))
        return await self._session.scalar(
            statement.where(Adapter.tenant_id == tenant_id, Adapter.name == name)
        )

    async def living_of_tenant(self, tenant_id: str) -> Sequence[Adapter]:
        """The version that each name of the tenant stands for."""
        statement = _current(across_tenants(Adapter)).where(Adapter.tenant_id == tenant_id)
        return (await self._session.scalars(statement.order_by(Adapter.name))).all()

    async def all_living_of_tenant(self, tenant_id: str) -> Sequence[Adapter]:
        """Every version of every name."""
        living = across_tenants(Adapter).where(
            Adapter.tenant_id == tenant_id, Adapter.removed_at.is_(None)
        )
        return (await self._session.scalars(living.order_by(Adapter.name, Adapter.number))).all()

    async def names_of_tenant(self, tenant_id: str) -> Sequence[AdapterName]:
        statement = across_tenants(AdapterName).where(AdapterName.tenant_id == tenant_id)
        return (await self._session.scalars(statement)).all()

    async def pinned(self) -> Sequence[Adapter]:
        """The versions, of all tenants, that stay on the device."""
        statement = _current(across_tenants(Adapter)).where(
            AdapterName.is_pinned, AdapterName.is_enabled
        )
        return (await self._session.scalars(statement)).all()

    async def untested(self, limit: int) -> Sequence[str]:
        """Contents, of all tenants, that no engine has tested yet; the newest first."""
        statement = across_tenants(Adapter).where(
            Adapter.parity.is_(None), Adapter.removed_at.is_(None)
        )
        rows = await self._session.scalars(statement.order_by(Adapter.id.desc()).limit(limit))
        return list(dict.fromkeys(row.version for row in rows))

    async def removed_since(self, moment: datetime) -> Sequence[Adapter]:
        """Versions, of all tenants, that were taken away after this moment."""
        removed = across_tenants(Adapter).where(Adapter.removed_at > moment)
        return (await self._session.scalars(removed)).all()

    async def set_parity(self, version: str, parity: dict[str, Any]) -> None:
        """Wherever this content has a name."""
        of_version = change_across_tenants(Adapter).where(Adapter.version == version)
        await self._session.execute(of_version.values(parity=parity))

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


def _current(statement: Select[Adapter]) -> Select[Adapter]:
    """Only the versions that their bare names stand for."""
    return statement.where(
        Adapter.removed_at.is_(None),
        AdapterName.tenant_id == Adapter.tenant_id,
        AdapterName.name == Adapter.name,
        AdapterName.current == Adapter.number,
    )
