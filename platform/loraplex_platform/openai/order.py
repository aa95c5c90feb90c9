"""A request that is understood, and what it asks of the engine."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from loraplex_engine.messages import Generate, Hello, SamplingParams
from loraplex_platform.kit.principal import Principal
from loraplex_platform.openai.resolver import Target
from loraplex_platform.openai.schemas import ChatRequest, CompletionRequest
from loraplex_platform.openai.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, through which request."""

    principal: Principal
    request_id: str
    client_request_id: str | None = None
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """A request that is understood: it can be admitted and generated."""

    caller: Caller
    request: ChatRequest | CompletionRequest
    target: Target
    model: ServedModel  # as the target has it
    hello: Hello
    prompts: list[tuple[int, ...]]
    sampling: SamplingParams
    started_at: datetime
    started_s: float  # monotonic

    @property
    def is_chat(self) -> bool:
        return isinstance(self.request, ChatRequest)

    @property
    def num_sequences(self) -> int:
        return len(self.prompts) * self.request.num_choices

    @property
    def asked(self) -> dict[str, Any]:
        """What the client sent to be answered, with the adapter's defaults."""
        return self.request.model_dump(include={"messages", "prompt"}, exclude_none=True)

    def prompt_of(self, index: int) -> tuple[int, ...]:
        """The prompt of a choice: all choices of one prompt stand together."""
        return self.prompts[index // self.request.num_choices]

    def sequences(self, cache_scope: str) -> list[Generate]:
        """What the engine is asked for: one sequence for each choice of each prompt."""
        request_id, principal = self.caller.request_id, self.caller.principal
        return [
            Generate(
                request_id=request_id if self.num_sequences == 1 else f"{request_id}.{index}",
                prompt_ids=self.prompt_of(index),
                sampling=self.sampling if index == 0 else _with_seed(self.sampling, index),
                tenant=principal.tenant_id,
                project=principal.project_id,
                cache_scope=cache_scope,
                tier=self.target.tier,
                share=self.target.share,
                adapter=self.target.adapter_version,
                parent_id=None if self.num_sequences == 1 else request_id,
                index=index,
                job_id=self.caller.job_id,
            )
            for index in range(self.num_sequences)
        ]


def _with_seed(sampling: SamplingParams, index: int) -> SamplingParams:
    """Each choice draws from a seed of its own, and the same one again in a retry."""
    return replace(sampling, seed=(sampling.seed + index + 2**63) % 2**64 - 2**63)
