"""What a static batch wastes: it runs as long as its longest output, a continuous one is always full."""

import random
from dataclasses import dataclass

from tests.sim.simulator import LinearSteps, Simulation
from tests.sim.workloads import Arrival, Script, Workload

from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.policies import PolicyName


@dataclass(frozen=True)
class Waste:
    """Steps of the static policy over those of the continuous one, and what the formula says."""

    finished: int
    ratio: float
    formula: float  # B·L_max/ΣL, over all batches


def heavy_tailed(count: int, seed: int) -> list[int]:
    """Output lengths: median 55, a tenth above 200, one in a thousand near the cut at 1,000."""
    rng = random.Random(seed)
    return [min(1_000, max(1, round(rng.lognormvariate(4, 1)))) for _ in range(count)]


def run_to_end(name: PolicyName, outputs: list[int], width: int) -> Simulation:
    """Requests of these output lengths, all there from the beginning, so many at once."""
    requests = tuple(Arrival(0.0, "t", "standard", 16, n) for n in outputs)
    run = Simulation(
        name,
        Workload((Script("t", requests),), max_tokens=max(outputs)),
        config=SchedulerConfig(max_num_seqs=width),
        steps=LinearSteps(base_s=0.001, per_token_s=0.0, per_context_s=0.0),
        num_tokens=80_000,
    )
    run.run(live_requests=len(outputs))
    return run


def waste_of(outputs: list[int], width: int) -> Waste:
    static, continuous = (run_to_end(n, outputs, width).totals.steps for n in ("static", "fcfs"))
    batches = [outputs[i : i + width] for i in range(0, len(outputs), width)]
    formula = sum(width * max(batch) for batch in batches) / sum(outputs)
    return Waste(len(outputs), static / continuous, formula)
