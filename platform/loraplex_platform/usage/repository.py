"""Statements on usage events."""

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants
from loraplex_platform.usage.models import UsageEvent


class UsageRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, event: UsageEvent) -> None:
        self._session.add(event)
        await self._session.flush()

    async def exists(self, request_id: str) -> bool:
        there = across_tenants(UsageEvent).where(UsageEvent.request_id == request_id)
        return await self._session.scalar(there) is not None
