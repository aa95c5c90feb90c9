"""Statements on usage events."""

from datetime import datetime

from sqlalchemy import func
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

    async def tokens_since(
        self, tenant_id: str, since: datetime, *, project_id: str | None, key_id: str | None
    ) -> int:
        """Prompt and completion tokens of requests that started since then."""
        statement = across_tenants(UsageEvent).where(
            UsageEvent.tenant_id == tenant_id,
            UsageEvent.ended_at >= since,  # the index
            UsageEvent.started_at >= since,
        )
        if project_id is not None:
            statement = statement.where(UsageEvent.project_id == project_id)
        if key_id is not None:
            statement = statement.where(UsageEvent.key_id == key_id)
        tokens = func.sum(UsageEvent.prompt_tokens + UsageEvent.completion_tokens)
        return int(await self._session.scalar(statement.with_only_columns(tokens)) or 0)
