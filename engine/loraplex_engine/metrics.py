"""What the engine counts about itself, from which EngineStats is made."""

from collections import Counter, defaultdict

from loraplex_engine.messages import SequenceStats, TokenCounters, WaitReason
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_engine.sequence import Sequence

SMOOTHING = 0.1  # weight of the newest step


class Meter:
    """Totals since the start, by tenant and kind, and smoothed step figures."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.steps = 0
        self.step_s = 0.0
        self.spare = 1.0
        self.preemptions = 0
        self._budget = max_num_batched_tokens
        self._by_tenant: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def count(self, tenant: str, kind: str, num_tokens: int) -> None:
        """`kind` is a field of TokenCounters."""
        self._by_tenant[tenant][kind] += num_tokens

    def observe(self, plan: StepPlan, seconds: float) -> None:
        weight = SMOOTHING if self.steps else 1.0
        live = sum(item.num_tokens for item in plan.items if item.seq.tier != "batch")
        self.steps += 1
        self.step_s += weight * (seconds - self.step_s)
        self.spare += weight * (max(0.0, 1 - live / self._budget) - self.spare)

    @property
    def tokens(self) -> TokenCounters:
        return TokenCounters(**sum(self._by_tenant.values(), Counter()))

    @property
    def tokens_by_tenant(self) -> tuple[tuple[str, TokenCounters], ...]:
        return tuple((t, TokenCounters(**counts)) for t, counts in self._by_tenant.items())


def sequence_stats(seq: Sequence, reason: WaitReason | None, now: float) -> SequenceStats:
    admitted_s = now if seq.admitted_s is None else seq.admitted_s
    return SequenceStats(
        request_id=seq.request_id,
        tenant=seq.tenant,
        tier=seq.tier,
        adapter=seq.adapter,
        phase=seq.phase,
        reason=reason,
        prompt_tokens=seq.num_prompt_tokens,
        completion_tokens=len(seq.output_ids),
        waited_s=admitted_s - seq.arrival_s,
        job_id=seq.job_id,
    )
