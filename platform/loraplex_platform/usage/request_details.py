"""What a usage event tells beyond its bill: names and labels that clients sent along."""

from datetime import datetime

from sqlalchemy import CursorResult, null, or_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants, change_across_tenants
from loraplex_platform.usage.models import UsageEvent

DETAILS = (UsageEvent.end_user, UsageEvent.client_request_id, UsageEvent.request_metadata)


async def erase_details(
    session: AsyncSession, tenant_id: str, before: datetime | None, limit: int
) -> int:
    """Empty them in some of a tenant's events, older than a moment or all; how many there were."""
    some = across_tenants(UsageEvent).where(
        UsageEvent.tenant_id == tenant_id, or_(*(column.is_not(None) for column in DETAILS))
    )
    if before is not None:
        some = some.where(UsageEvent.ended_at < before)
    ids = some.with_only_columns(UsageEvent.request_id).limit(limit)
    statement = change_across_tenants(UsageEvent).where(UsageEvent.request_id.in_(ids))
    # null(): a JSON column's None would be JSON's null, which is a value
    result = await session.execute(
        statement.values(dict.fromkeys((column.key for column in DETAILS), null()))
    )
    assert isinstance(result, CursorResult)
    return result.rowcount
