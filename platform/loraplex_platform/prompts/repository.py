"""Statements on stored prompts."""

from collections.abc import Sequence

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.paging import page_after
from loraplex_platform.db.scope import for_tenant
from loraplex_platform.kit.principal import Principal
from loraplex_platform.prompts.models import StoredPrompt


class PromptRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, prompt: StoredPrompt) -> None:
        self._session.add(prompt)
        await self._session.flush()

    async def remove(self, prompt: StoredPrompt) -> None:
        await self._session.delete(prompt)
        await self._session.flush()

    async def find(self, principal: Principal, request_id: str) -> StoredPrompt | None:
        return await self._session.scalar(
            _own(principal).where(StoredPrompt.request_id == request_id)
        )

    async def page(
        self, principal: Principal, after: str | None, limit: int
    ) -> Sequence[StoredPrompt]:
        statement = page_after(_own(principal), StoredPrompt.request_id, after, limit)
        return (await self._session.scalars(statement)).all()


def _own(principal: Principal) -> Select[StoredPrompt]:
    """A key sees what its project asked."""
    return for_tenant(principal, StoredPrompt).where(
        StoredPrompt.project_id == principal.project_id
    )
