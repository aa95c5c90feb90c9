"""What tenants stored, by table: found through the `Content` mark of the models."""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, Table, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.base import Base, Content
from loraplex_platform.db.scope import ACROSS

PAGE = 1000  # rows in memory at once


def content_models() -> list[type[Any]]:
    """Those that refer to others come before them."""
    marked = [m.class_ for m in Base.registry.mappers if issubclass(m.class_, Content)]
    order = {table.name: index for index, table in enumerate(Base.metadata.sorted_tables)}
    return sorted(marked, key=lambda model: -order[model.__tablename__])


async def erase_some(
    session: AsyncSession, model: type[Any], tenant_id: str, before: datetime | None, limit: int
) -> int:
    """Delete some of a tenant's rows, older than a moment or of any age; how many there were."""
    key = tuple_(*model.__table__.primary_key.columns)
    some = select(*key.clauses).where(model.tenant_id == tenant_id)
    if before is not None:
        some = some.where(getattr(model, model.aged_by) < before)
    statement = delete(model).where(model.tenant_id == tenant_id, key.in_(some.limit(limit)))
    result = await session.execute(
        statement, execution_options={ACROSS: True, "synchronize_session": False}
    )
    assert isinstance(result, CursorResult)
    return result.rowcount


async def rows_of_tenant(
    session: AsyncSession, table: Table, tenant_id: str
) -> AsyncIterator[Mapping[str, Any]]:
    """All rows of a tenant, without secrets, a page in memory at a time."""
    columns = [column for column in table.c if not column.info.get("secret")]
    owner = table.c.tenant_id if "tenant_id" in table.c else table.c.id
    statement = select(*columns).where(owner == tenant_id).order_by(*table.primary_key.columns)
    options = {ACROSS: True, "yield_per": PAGE}
    async for row in await session.stream(statement, execution_options=options):
        yield {str(name): value for name, value in row._mapping.items()}
