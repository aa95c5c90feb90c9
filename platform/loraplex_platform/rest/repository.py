"""Statements on idempotent requests."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import for_platform
from loraplex_platform.rest.models import IdempotentRequest


class IdempotentRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, row: IdempotentRequest) -> None:
        self._session.add(row)
        await self._session.flush()

    async def remove(self, row: IdempotentRequest) -> None:
        await self._session.delete(row)
        await self._session.flush()

    async def find(self, caller_id: str, route: str, key: str) -> IdempotentRequest | None:
        """Locked until the unit of work ends."""
        statement = for_platform(IdempotentRequest).where(
            IdempotentRequest.caller_id == caller_id,
            IdempotentRequest.route == route,
            IdempotentRequest.key == key,
        )
        return await self._session.scalar(statement.with_for_update())

    async def older_than(self, moment: datetime, limit: int) -> Sequence[IdempotentRequest]:
        statement = for_platform(IdempotentRequest).where(IdempotentRequest.started_at < moment)
        return (await self._session.scalars(statement.limit(limit))).all()
