"""The end of a request: usage written, ticket given back, metrics counted."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from loraplex_engine.errors import (
    ContextTooLong,
    DeadlineExceeded,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
    UnknownAdapter,
)
from loraplex_engine.messages import ErrorCode, Tier
from loraplex_platform.admission.limiter import Actual
from loraplex_platform.admission.ticket import Ticket
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Principal
from loraplex_platform.observability.metrics import Metrics, Observation
from loraplex_platform.openai.tally import Tally
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.meter import Recorder
from loraplex_platform.usage.rating import tokens_of

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known of a request before it is served."""

    request_id: str
    principal: Principal
    endpoint: Endpoint
    model: str
    base_model: str
    adapter_version: str | None
    tier: Tier
    region: str
    started_at: datetime
    started_s: float  # monotonic
    job_id: str | None
    end_user: str | None
    client_request_id: str | None
    metadata: dict[str, str] | None


class Settlement:
    """Called once by the generation, on every end."""

    def __init__(
        self,
        about: Circumstances,
        ticket: Ticket,
        recorder: Recorder,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._about = about
        self._ticket = ticket
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock

    async def started(self) -> None:
        """The first token is there."""
        await self._ticket.started()

    async def __call__(self, tally: Tally, error: EngineError | None) -> None:
        facts = self._facts(tally, error)
        try:
            await self._recorder.record(facts)
        finally:
            await self._ticket.settle(
                Actual(
                    facts.prompt_tokens,
                    facts.cached_tokens,
                    facts.completion_tokens,
                    paid=tokens_of(facts),
                )
            )
            self._metrics.observe(
                Observation(
                    tier=facts.tier,
                    outcome=facts.outcome,
                    prompt_tokens=facts.prompt_tokens,
                    cached_tokens=facts.cached_tokens,
                    completion_tokens=facts.completion_tokens,
                    sequences=facts.sequences,
                    queue_s=facts.queue_s,
                    ttft_s=facts.ttft_s,
                    total_s=facts.total_s,
                )
            )

    def _facts(self, tally: Tally, error: EngineError | None) -> UsageFacts:
        about, usage = self._about, tally.usage
        first = tally.first_token_s
        return UsageFacts(
            request_id=about.request_id,
            tenant_id=about.principal.tenant_id,
            project_id=about.principal.project_id,
            key_id=about.principal.key_id,
            endpoint=about.endpoint,
            model=about.model,
            base_model=about.base_model,
            adapter_version=about.adapter_version,
            tier=about.tier,
            outcome=tally.outcome if error is None else "error",
            error_code=None if error is None else _code_of(error),
            sequences=len(tally.sequences),
            attempts=tally.attempts,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            recomputed_tokens=usage.recomputed_tokens,
            discarded_tokens=tally.discarded_tokens,
            started_at=about.started_at,
            ended_at=self._clock.now(),
            queue_s=tally.queue_s,
            ttft_s=None if first is None else first - about.started_s,
            total_s=self._clock.monotonic() - about.started_s,
            engine_s=tally.engine_s,
            region=about.region,
            delivered=error is None or tally.was_delivered,
            job_id=about.job_id,
            end_user=about.end_user,
            client_request_id=about.client_request_id,
            request_metadata=about.metadata,
        )


def _code_of(error: EngineError) -> ErrorCode:
    codes: dict[type[EngineError], ErrorCode] = {
        ContextTooLong: "context_too_long",
        UnknownAdapter: "unknown_adapter",
        EngineOverloaded: "overloaded",
        DeadlineExceeded: "timeout",
        EngineUnavailable: "unavailable",
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), "internal")
