"""What a decision costs: 256 running, 1,000 waiting, 200 flows; as a ratio to a stripped loop.

python -m tests.bench.bench_scheduler
"""

import random
import time
from statistics import median, quantiles

from tests.sim.simulator import SimulatedSlots

from loraplex_engine.messages import SamplingParams, Tier
from loraplex_engine.prefix_cache import PagedKv
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policy import ScheduledTokens, StepPlan
from loraplex_engine.sequence import Sequence

STEP_S = 0.02


def make_policy(num_waiting: int) -> tuple[Hfs, list[Sequence]]:
    kv = PagedKv(40_000, 16, caching=False)
    policy = Hfs(kv, SimulatedSlots(8, lambda adapter: 0.0), SchedulerConfig(max_num_seqs=256))
    rng = random.Random(0)
    tiers: tuple[Tier, ...] = ("interactive", "standard")
    sequences = [
        Sequence(
            request_id=f"r{i}",
            prompt_ids=(0,) * rng.randint(50, 400),
            sampling=SamplingParams(max_tokens=100_000),
            tenant=f"tenant-{i % 100}",
            arrival_s=0.0,
            tier=tiers[i // 100 % 2],
        )
        for i in range(256 + num_waiting)
    ]
    for seq in sequences:
        policy.add(seq, 0.0)
    return policy, sequences


def complete(policy: Hfs, plan: StepPlan, now: float, ending: int = 0) -> None:
    for item in plan.items:
        item.seq.num_computed = item.start + item.num_tokens
        if item.samples:
            item.seq.num_pending -= 1
            item.seq.output_ids.append(0)
    for item in plan.items[:ending]:
        policy.finish(item.seq, now)
    policy.observe(plan, STEP_S, now)


def stripped(sequences: list[Sequence]) -> float:
    """The least a step can do: a token for each of them, put into a list."""
    begin = time.thread_time()
    items = []
    for seq in sequences:
        start = seq.num_scheduled
        seq.num_scheduled = start + 1
        seq.num_pending += 1
        items.append(ScheduledTokens(seq, start, 1, True))
    spent = time.thread_time() - begin
    for seq in sequences:
        seq.num_scheduled -= 1
        seq.num_pending -= 1
    return spent


def measure(steps: int = 400, ending: int = 0) -> tuple[list[float], list[float]]:
    """CPU seconds of schedule() and of the stripped loop, step by step; `ending` requests end in each."""
    policy, _ = make_policy(1_000 + ending * steps)
    now = 0.0
    while len(policy.running) < 256 or any(lane.prefills for lane in policy.lanes):
        complete(policy, policy.schedule(now), now)
        now += STEP_S
    spent, least = [], []
    for _ in range(steps):
        least.append(stripped(policy.running))
        begin = time.thread_time()
        plan = policy.schedule(now)
        spent.append(time.thread_time() - begin)
        now += STEP_S
        complete(policy, plan, now, ending)
    return spent, least


def main() -> None:
    for label, ending in (("no admissions", 0), ("4 admissions a step", 4)):
        spent, least = measure(ending=ending)
        p99 = quantiles(spent, n=100)[98]
        print(
            f"{label}: schedule() p50 {1e6 * median(spent):.0f} µs, p99 {1e6 * p99:.0f} µs; "
            f"stripped loop p50 {1e6 * median(least):.0f} µs; ratio {median(spent) / median(least):.2f}"
        )


if __name__ == "__main__":
    main()
