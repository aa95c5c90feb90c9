"""What the engine says of itself at a moment: its statistics, and why one request waits."""

from collections.abc import Iterable

from loraplex_engine.adapter_tier import AdapterTier
from loraplex_engine.intake import Served
from loraplex_engine.messages import EngineStats, Explanation
from loraplex_engine.metrics import Meter, sequence_stats
from loraplex_engine.scheduling.policy import KvCache, Policy
from loraplex_engine.sequence import Sequence


def engine_stats(
    served: Served,
    policy: Policy,
    kv: KvCache,
    adapters: AdapterTier,
    meter: Meter,
    live: Iterable[Sequence],
    now: float,
) -> EngineStats:
    """The first of its engine: the loop fills in its number and what only the loop knows."""
    return EngineStats(
        engine_id=served.engine_id,
        sequence_number=1,
        engine_clock_s=now,
        running=len(policy.running),
        waiting=len(policy.waiting),
        sequences=tuple(sequence_stats(seq, policy.reason(seq), now) for seq in live),
        free_blocks=kv.num_free,
        num_blocks=kv.num_blocks,
        free_slots=adapters.num_free_slots,
        num_slots=served.hello.max_loras,
        resident_adapters=tuple(adapters.resident),
        step_s=meter.step_s,
        steps=meter.steps,
        tokens=meter.tokens,
        tokens_by_tenant=meter.tokens_by_tenant,
        preemptions=meter.preemptions,
        spare=meter.spare,
        promises=meter.promises.stats,
        busy_s=tuple(meter.busy_s.items()),
        adapter_tiers=adapters.stats,
        adapter_checks=adapters.checks,
    )


def explanation(seq: Sequence, policy: Policy, now: float) -> Explanation:
    why = policy.explain(seq, now)
    return Explanation(
        seq.request_id, seq.phase, why.reason, why.ahead, why.expected_s, why.detail, seq.tenant
    )
