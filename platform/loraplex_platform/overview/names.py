"""What tenants are called, and what they call their adapters, in one question."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.db.scope import visible_to
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.tenants.models import Tenant


class Names(NamedTuple):
    tenants: dict[str, str]  # by id
    adapters: dict[tuple[str, str], str]  # by tenant's id and version


async def names_of(
    session: AsyncSession, by: Administrator, tenant_ids: Collection[str], versions: Collection[str]
) -> Names:
    """Of those that are seen."""
    if not tenant_ids:
        return Names({}, {})
    living = (
        visible_to(by, Adapter)
        .where(Adapter.removed_at.is_(None), Adapter.version.in_(versions))
        .with_only_columns(Adapter.tenant_id, Adapter.version, Adapter.name)
        .subquery()
    )
    statement = (
        visible_to(by, Tenant)
        .outerjoin(living, living.c.tenant_id == Tenant.id)
        .where(Tenant.id.in_(tenant_ids))
        .with_only_columns(Tenant.id, Tenant.name, living.c.version, living.c.name)
    )
    rows = (await session.execute(statement)).all()
    return Names(
        {id: name for id, name, _, _ in rows},
        {(id, version): called for id, _, version, called in rows if version is not None},
    )
