"""Statements on prefixes."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import and_, func, or_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from loraplex_platform.catalogue.models import Adapter, AdapterName
from loraplex_platform.db.paging import page_after
from loraplex_platform.db.scope import across_tenants, for_tenant
from loraplex_platform.kit.principal import Principal
from loraplex_platform.prefixes.models import Prefix
from loraplex_platform.tenants.models import Tenant


class Living(NamedTuple):
    """A prefix that can be warm, and the version it belongs to now; None is the base model."""

    prefix_id: str
    adapter_version: str | None


class PrefixRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, prefix: Prefix) -> None:
        self._session.add(prefix)
        await self._session.flush()

    async def remove(self, prefix: Prefix) -> None:
        await self._session.delete(prefix)
        await self._session.flush()

    async def page(self, principal: Principal, after: str | None, limit: int) -> Sequence[Prefix]:
        own = page_after(for_tenant(principal, Prefix), Prefix.id, after, limit)
        return (await self._session.scalars(own)).all()

    async def find(self, principal: Principal, id_or_name: str) -> Prefix | None:
        named = or_(Prefix.id == id_or_name, Prefix.name == id_or_name)
        return await self._session.scalar(
            for_tenant(principal, Prefix).where(named).order_by(Prefix.id != id_or_name).limit(1)
        )

    async def tokens_of(self, principal: Principal) -> int:
        total = for_tenant(principal, Prefix).with_only_columns(func.sum(Prefix.num_tokens))
        return int(await self._session.scalar(total) or 0)

    async def living(self, base_id: str, region: str) -> list[Living]:
        """All tenants' prefixes whose model there is, and that may be processed here."""
        is_its_model = and_(
            AdapterName.tenant_id == Prefix.tenant_id, AdapterName.name == Prefix.model
        )
        is_current = and_(
            Adapter.tenant_id == AdapterName.tenant_id,
            Adapter.name == AdapterName.name,
            Adapter.number == AdapterName.current,
            Adapter.removed_at.is_(None),
        )
        statement = (
            across_tenants(Prefix)
            .with_only_columns(Prefix.id, Adapter.version, Tenant.allowed_regions)
            .join(Tenant, Tenant.id == Prefix.tenant_id)
            .outerjoin(AdapterName, is_its_model)
            .outerjoin(Adapter, is_current)
            .where(or_(Prefix.model == base_id, Adapter.version.is_not(None)))
        )
        return [
            Living(prefix_id, version)
            for prefix_id, version, regions in await self._session.execute(statement)
            if regions is None or region in regions
        ]

    async def with_tokens(self, prefix_ids: Collection[str]) -> Sequence[Prefix]:
        statement = across_tenants(Prefix).where(Prefix.id.in_(prefix_ids))
        return (await self._session.scalars(statement.options(undefer(Prefix.token_ids)))).all()
