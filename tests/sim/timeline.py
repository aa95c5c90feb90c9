"""Who ran when: a picture of one engine serving live tenants and batch work."""

from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from tests.sim.experiments import config_for
from tests.sim.simulator import Simulation
from tests.sim.workloads import Backlog, Tenant, Workload

from loraplex_engine.messages import TIERS, Tier
from loraplex_engine.scheduling.policy import StepPlan

SHADES = {
    "ada": "#08519c",
    "bob": "#4292c6",
    "cyd": "#006d2c",
    "dee": "#74c476",
    "batch": "#bdbdbd",
}
BIN_S = 0.25


class Recorder:
    """Tokens per tenant and quarter of a second."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, Tier], dict[int, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        self.waiting: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.step_ms: list[tuple[float, float]] = []

    def __call__(self, run: Simulation, plan: StepPlan, seconds: float) -> None:
        at = int(run.now / BIN_S)
        for item in plan.items:
            cost = 2.0 if item.num_tokens == 1 else item.num_tokens
            self.tokens[item.seq.tenant, item.seq.tier][at] += cost
        for seq in run.policy.waiting:
            if seq.tier != "batch":
                self.waiting[seq.tier][at] = max(self.waiting[seq.tier][at], 1)
        self.step_ms.append((run.now, 1e3 * seconds))


def record(seconds: float) -> Recorder:
    """Two interactive tenants, one of them in bursts, two standard ones, and endless batch work."""
    tenants = (
        Tenant("ada", "interactive", 1.5, cv=1.0),
        Tenant("bob", "interactive", 1.5, on_off=(20.0, 9.0)),
        Tenant("cyd", "standard", 1.0),
        Tenant("dee", "standard", 1.0, on_off=(30.0, 9.0)),
    )
    recorder = Recorder()
    run = Simulation(
        "hfs", Workload(tenants, (Backlog(),)), seed=3, config=config_for("hfs"), on_step=recorder
    )
    run.run(until_s=seconds)
    return recorder


def draw_timeline(path: Path, seconds: float = 60.0) -> Path:
    recorder = record(seconds)
    figure, (service, steps) = plt.subplots(
        2, 1, figsize=(12, 6), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    bins = range(int(seconds / BIN_S))
    keys = sorted(recorder.tokens, key=lambda key: (TIERS.index(key[1]), key[0]))
    service.stackplot(
        [b * BIN_S for b in bins],
        [[recorder.tokens[key][b] / BIN_S / 1e3 for b in bins] for key in keys],
        labels=[f"{tenant} ({tier})" for tenant, tier in keys],
        colors=[SHADES[tenant] for tenant, _ in keys],
        step="post",
    )
    service.set_ylabel("service [1,000 tokens' worth/s]")
    service.set_title(
        "Live traffic takes what it needs; batch work gets the rest, and yields at once"
    )
    service.legend(loc="upper center", ncols=5, frameon=False, bbox_to_anchor=(0.5, -0.02))
    service.margins(x=0)
    service.spines[["top", "right"]].set_visible(False)
    steps.plot(*zip(*recorder.step_ms, strict=True), ".", markersize=1.5, color="#444444")
    steps.axhline(50, color="#cb181d", linewidth=0.8)
    steps.annotate("interactive TPOT target", (0.2, 51), color="#cb181d", fontsize=8, va="bottom")
    steps.set_ylabel("step [ms]")
    steps.set_xlabel("time [s]")
    steps.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
