"""What the engine counts about itself, from which EngineStats is made."""

import logging
from collections import Counter, defaultdict
from dataclasses import replace

from loraplex_engine.live_request import Ending
from loraplex_engine.messages import (
    TIERS,
    SchedulerStats,
    SequenceStats,
    Tier,
    TokenCounters,
    WaitReason,
)
from loraplex_engine.promises import Promises
from loraplex_engine.scheduling.config import default_targets
from loraplex_engine.scheduling.policy import PolicyStats, StepPlan
from loraplex_engine.sequence import Sequence

log = logging.getLogger(__name__)

SLOW = 5.0  # times its prediction: something is wrong with the step, or with the prediction
WORTH_A_LINE_S = 0.5  # shorter ones, as neighbours on a machine cause, are counted only
SMOOTHING = 0.1  # weight of the newest step


class Meter:
    """Totals since the start, by tenant and kind, and smoothed step figures."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.steps = 0
        self.step_s = 0.0
        self.spare = 1.0
        self.preemptions = 0
        self.busy_s: dict[Tier, float] = dict.fromkeys(TIERS, 0.0)
        self.promises = Promises(default_targets())
        self._plans = SchedulerStats()
        self._budget = max_num_batched_tokens
        self._by_tenant: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def count(self, tenant: str, kind: str, num_tokens: int) -> None:
        """`kind` is a field of TokenCounters."""
        self._by_tenant[tenant][kind] += num_tokens

    def observe(self, plan: StepPlan, seconds: float) -> None:
        weight = SMOOTHING if self.steps else 1.0
        live = sum(item.num_tokens for item in plan.items if item.seq.tier != "batch")
        for item in plan.items:
            self.busy_s[item.seq.tier] += seconds * item.num_tokens / plan.num_tokens
        self.steps += 1
        self.step_s += weight * (seconds - self.step_s)
        self.spare += weight * (max(0.0, 1 - live / self._budget) - self.spare)
        if plan.predicted_s:
            self._observe_forecast(plan, seconds)

    def finish(self, seq: Sequence, ending: Ending, now: float) -> None:
        self.count(seq.tenant, "recomputed", seq.num_recomputed)
        self.promises.note(seq, ending, now)

    def observe_plan(self, plan: StepPlan, seconds: float) -> None:
        """The plan took `seconds` to make."""
        seen = self._plans
        self.preemptions += len(plan.preemptions)
        self._plans = replace(
            seen,
            schedule_s=seen.schedule_s + SMOOTHING * (seconds - seen.schedule_s),
            offloads=seen.offloads + sum(p.mode == "offload" for p in plan.preemptions),
        )

    def _observe_forecast(self, plan: StepPlan, seconds: float) -> None:
        """The watchdog: a step that took far longer than planned is written down."""
        seen, ratio = self._plans, seconds / plan.predicted_s
        is_slow = ratio > SLOW
        if is_slow and seconds > WORTH_A_LINE_S:
            what = (seconds, plan.predicted_s, len(plan.items), plan.num_tokens)
            log.warning("a step took %.3f s instead of %.3f: %d sequences, %d tokens", *what)
        self._plans = replace(
            seen,
            forecast_error=seen.forecast_error + SMOOTHING * (abs(ratio - 1) - seen.forecast_error),
            slow_steps=seen.slow_steps + is_slow,
        )

    def scheduler(self, jain: float, policy: PolicyStats) -> SchedulerStats:
        return replace(self._plans, jain=jain, **policy._asdict())

    def service_of(self, tenant: str) -> int:
        """Prompt tokens computed and twice the tokens generated: what fairness counts."""
        counts = self._by_tenant[tenant]
        return counts["prompt"] - counts["cached"] + 2 * counts["completion"]

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
