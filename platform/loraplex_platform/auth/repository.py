"""Statements on API keys."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.auth.models import ApiKey
from loraplex_platform.db.scope import across_tenants


class KeyRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, key: ApiKey) -> None:
        self._session.add(key)
        await self._session.flush()

    async def get(self, key_id: str) -> ApiKey | None:
        """Any tenant's key: this is how we learn whose it is."""
        return await self._session.scalar(across_tenants(ApiKey).where(ApiKey.id == key_id))

    async def of_tenant(self, tenant_id: str) -> Sequence[ApiKey]:
        statement = across_tenants(ApiKey).where(ApiKey.tenant_id == tenant_id)
        return (await self._session.scalars(statement.order_by(ApiKey.created_at))).all()
