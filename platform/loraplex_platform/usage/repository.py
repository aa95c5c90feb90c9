"""Statements on usage events."""

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants
from loraplex_platform.usage.models import UsageEvent


class UsageRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add_once(self, event: UsageEvent) -> None:
        """Does nothing when the request's event is there already."""
        there = across_tenants(UsageEvent).where(UsageEvent.request_id == event.request_id)
        if await self._session.scalar(there) is None:
            self._session.add(event)
            await self._session.flush()
