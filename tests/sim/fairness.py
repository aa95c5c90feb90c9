"""Who gets what while everybody waits: gaps between tenants beside their bound, Jain's index, shares."""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from tests.sim.measure import jain
from tests.sim.simulator import Simulation
from tests.sim.workloads import TRACES, Backlog, Workload

from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.policy import StepPlan

WINDOW = 20  # of Jain's index, in times what a tenant may be ahead of another


@dataclass(frozen=True)
class Fairness:
    """One run of tenants that always wait."""

    finished: int
    gap_ratios: tuple[float, ...]  # of each pair: widest gap of service by weight over its bound
    jain: tuple[
        float, ...
    ]  # of windows in which each tenant is served 20 times what it may be ahead
    jain_brief: tuple[float, ...]  # of windows in which all of them together are
    share_ratio: float  # of the least served by weight to the most


def endless(weights: tuple[float, ...], depths: tuple[int, ...]) -> Workload:
    """Standard tenants of whom so many requests always wait."""
    return Workload(
        backlogs=tuple(
            Backlog(f"tenant-{i}", "standard", weight, TRACES["co-serving"], depth)
            for i, (weight, depth) in enumerate(zip(weights, depths, strict=True))
        )
    )


class Ledger:
    """Service by weight, step by step, as the machine gave it; and what a tenant could still accrue."""

    def __init__(self, workload: Workload, window: float) -> None:
        self.weights = {backlog.tenant: backlog.weight for backlog in workload.backlogs}
        self.window = window / max(self.weights.values())
        self.service = dict.fromkeys(self.weights, 0.0)
        self.accruable = 0.0  # Δ
        self.trail: list[tuple[float, dict[str, float]]] = []

    def __call__(self, run: Simulation, plan: StepPlan, seconds: float) -> None:
        waiting = {seq.tenant for seq in run.policy.waiting}
        assert waiting == self.weights.keys(), "everybody always waits"
        admitted: Counter[str] = Counter()
        for seq, _, num_tokens, _ in plan.items:
            cost = 2 if num_tokens == 1 and seq.output_ids else num_tokens
            self.service[seq.tenant] += cost / self.weights[seq.tenant]
            admitted[seq.tenant] += cost
        for seq in run.policy.running:
            left = max(0, len(seq.prompt_ids) - seq.num_scheduled)
            admitted[seq.tenant] += left + 2 * (run.lives[seq].num_output - len(seq.output_ids))
        most = max(admitted[name] / weight for name, weight in self.weights.items())
        self.accruable = max(self.accruable, most)
        self.trail.append((run.now + seconds, dict(self.service)))

    @property
    def ahead(self) -> float:
        """Δ + β: how far a tenant may be ahead of another."""
        return self.accruable + self.window

    def gap_ratios(self) -> tuple[float, ...]:
        ratios = []
        for one, other in combinations(self.weights, 2):
            leads = [service[one] - service[other] for _, service in self.trail]
            ratios.append((max(leads) - min(leads)) / (2 * self.ahead))
        return tuple(ratios)

    def jain(self, *, is_brief: bool) -> tuple[float, ...]:
        """Of each window, in turn.

        What a tenant may be ahead is service by weight. At the rate of that, tenants within their
        bound differ by a tenth of a window at most, and the index is at least 1 / (1 + 0.05²). A
        brief window has the whole machine's rate instead, is shorter by the sum of the weights, and
        within the bound promises nothing.
        """
        weights = 1.0 if is_brief else sum(self.weights.values())
        total = sum(self.service[name] * weight for name, weight in self.weights.items())
        window_s = WINDOW * self.ahead / (total / self.trail[-1][0] / weights)
        indices, begin = [], dict.fromkeys(self.weights, 0.0)
        end_s = window_s
        for at_s, service in self.trail:
            if at_s >= end_s:
                indices.append(jain([service[name] - begin[name] for name in self.weights]))
                begin, end_s = service, at_s + window_s
        return tuple(indices)


def judge(workload: Workload, config: SchedulerConfig, seed: int, requests: int) -> Fairness:
    ledger = Ledger(workload, config.locality_window)
    run = Simulation("hfs", workload, seed=seed, config=config, on_step=ledger)
    while run.num_live_finished < requests:
        run.run(until_s=run.now + 10)
    shares = ledger.service.values()
    return Fairness(
        run.num_live_finished,
        ledger.gap_ratios(),
        ledger.jain(is_brief=False),
        ledger.jain(is_brief=True),
        min(shares) / max(shares),
    )
