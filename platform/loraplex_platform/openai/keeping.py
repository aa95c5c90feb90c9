"""Settles a request, and has its prompt kept with the answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loraplex_engine.errors import EngineError
from loraplex_platform.kit.principal import Principal
from loraplex_platform.openai.generation import Settle
from loraplex_platform.openai.tally import Tally
from loraplex_platform.prompts.service import PromptService


@dataclass(frozen=True, slots=True)
class Keeping:
    """For a tenant that turned it on."""

    settle: Settle
    prompts: PromptService
    principal: Principal
    request_id: str
    model: str
    asked: Mapping[str, Any]

    async def started(self) -> None:
        await self.settle.started()

    async def __call__(self, tally: Tally, error: EngineError | None) -> None:
        await self.settle(tally, error)
        answers = [sequence.text for sequence in tally.sequences]
        await self.prompts.keep(self.principal, self.request_id, self.model, self.asked, answers)
