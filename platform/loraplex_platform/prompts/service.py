"""Keeps prompts with their answers, for the tenants that turned it on, and for them alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import note
from loraplex_platform.db.database import UNREACHABLE, Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import NotFound
from loraplex_platform.kit.principal import Actor, Principal
from loraplex_platform.prompts.models import StoredPrompt
from loraplex_platform.prompts.repository import PromptRepository

log = structlog.get_logger(__name__)


class PromptService:
    """No operator's route leads here."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def keep(
        self,
        principal: Principal,
        request_id: str,
        model: str,
        asked: Mapping[str, Any],
        answers: Sequence[str],
    ) -> None:
        """After the request is settled; while the database is away it is not kept."""
        row = StoredPrompt(
            request_id=request_id,
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            model=model,
            asked=dict(asked),
            answers=list(answers),
            created_at=self._clock.now(),
        )
        try:
            async with self._database.unit_of_work(principal) as session:
                await PromptRepository(session).add(row)
        except UNREACHABLE as error:
            log.warning("prompt_not_stored", request_id=request_id, error=type(error).__name__)

    async def page(
        self, principal: Principal, *, after: str | None, limit: int
    ) -> Sequence[StoredPrompt]:
        """Oldest first."""
        async with self._database.reading(principal) as session:
            return await PromptRepository(session).page(principal, after, limit)

    async def get(self, principal: Principal, request_id: str) -> StoredPrompt:
        async with self._database.reading(principal) as session:
            return await _found(session, principal, request_id)

    async def delete(self, principal: Principal, request_id: str, *, by: Actor) -> None:
        async with self._database.unit_of_work(principal) as session:
            prompt = await _found(session, principal, request_id)
            note(session, prompt, "deleted", by, self._clock)
            await PromptRepository(session).remove(prompt)


async def _found(session: AsyncSession, principal: Principal, request_id: str) -> StoredPrompt:
    prompt = await PromptRepository(session).find(principal, request_id)
    if prompt is None:
        raise NotFound(f"There is no stored prompt '{request_id}'.", param="request_id")
    return prompt
