"""A sequence of FakeEngine: its text, its stop strings, and what is said of it."""

import hashlib
import time
from dataclasses import dataclass, field

from loraplex_engine.messages import ErrorCode, Finished, FinishReason, Generate, SequenceStats


@dataclass(slots=True, eq=False)
class FakeSequence:
    """A sequence in flight."""

    request: Generate
    life: int  # of the engine that it runs on
    started_s: float
    cached_tokens: int
    token_ids: list[int] = field(default_factory=list)
    held_text: str = ""
    first_token_s: float | None = None
    is_aborted: bool = False

    def take_text(self, new: str) -> tuple[str, str | None]:
        """Text that can be shown now, and the stop string that was found."""
        stops = self.request.sampling.stop
        text = self.held_text + new
        if len(self.token_ids) < self.request.sampling.min_tokens:
            stops = ()
        found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            return text[:at], stop
        held = max((_overlap(text, stop) for stop in stops), default=0)
        self.held_text = text[len(text) - held :]
        return text[: len(text) - held], None

    @property
    def stats(self) -> SequenceStats:
        return SequenceStats(
            request_id=self.request.request_id,
            tenant=self.request.tenant,
            tier=self.request.tier,
            adapter=self.request.adapter,
            phase="decode",
            reason=None,
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=len(self.token_ids),
            waited_s=0.0,
            job_id=self.request.job_id,
        )

    def finished(
        self,
        reason: FinishReason,
        *,
        stop_reason: str | int | None = None,
        error: ErrorCode | None = None,
        retry_after_s: float | None = None,
    ) -> Finished:
        first = self.first_token_s
        return Finished(
            request_id=self.request.request_id,
            finish_reason=reason,
            prompt_tokens=len(self.request.prompt_ids),
            cached_tokens=self.cached_tokens,
            completion_tokens=len(self.token_ids),
            recomputed_tokens=0,
            queue_s=0.0,
            ttft_s=None if first is None else first - self.started_s,
            total_s=time.monotonic() - self.started_s,
            engine_s=0.001 * len(self.token_ids),
            tier=self.request.tier,
            stop_reason=stop_reason,
            error=error,
            retry_after_s=retry_after_s,
        )


def randomness(request: Generate) -> bytes:
    """What a request's tokens depend on: greedy sampling has no seed."""
    seed = request.sampling.seed if request.sampling.temperature > 0 else None
    return hashlib.sha256(repr((request.prompt_ids, request.adapter, seed)).encode()).digest()


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that the stop string begins with."""
    return next((k for k in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:k])), 0)
