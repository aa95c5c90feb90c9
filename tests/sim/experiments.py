"""The runs behind deploy/docs/scheduling.md. Each is a pure function of its arguments and the seed."""

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tests.sim.batching import Waste, heavy_tailed, waste_of
from tests.sim.fairness import Fairness, endless, judge
from tests.sim.measure import Measured, measure
from tests.sim.simulator import SimulatedSlots, Simulation
from tests.sim.workloads import TRACES, Tenant, Workload, co_serving

from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.policies import PolicyName

HOST_BLOCKS = 15_000  # twice the device's
NUM_TOKENS = 120_000
ADAPTER_MB = (10, 20, 40)  # sizes of adapters; 20 ms are charged for 10 MB
ENDLESS: dict[str, tuple[tuple[float, ...], tuple[int, ...]]] = {  # weights, and how many wait
    "weights 1:2:4": ((1.0, 2.0, 4.0), (32, 32, 32)),
    "one sends 10 times": ((1.0, 1.0), (20, 200)),
}
STATIC_BATCH = 16  # requests
SLOTS = ("8 slots", "32 slots")  # of the device, for 32 adapters
GOODPUT = 7.5  # requests a second: the highest of the rates tried at which nine of ten are attained
BATCH_ONLY_SERVICE = 21_800.0  # tokens' worth a second: what the `batch only` row measures


@dataclass(frozen=True)
class Job:
    """One run to make: an experiment, its variant, and a seed."""

    experiment: str
    variant: str
    policy: PolicyName
    rate: float
    seed: int
    requests: int

    def run(self) -> dict[str, object]:
        experiment = CHECKS.get(self.experiment) or EXPERIMENTS[self.experiment]
        return {**asdict(self), **asdict(experiment(self))}


def config_for(policy: PolicyName) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=160,
        max_num_batched_tokens=8192 if policy == "hfs" else 2048,
        num_host_blocks=HOST_BLOCKS if policy == "hfs" else 0,
    )


def co_serve(job: Job) -> Measured:
    """Live traffic of reference lengths, alone or beside endless batch work."""
    workload = co_serving(
        job.rate, live=job.variant != "batch only", batch=job.variant != "live only"
    )
    run = Simulation(job.policy, workload, seed=job.seed, config=config_for(job.policy))
    if job.variant == "batch only":
        run.run(until_s=job.requests / 100)
    else:
        run.run(live_requests=job.requests)
    return measure(run)


def traces(job: Job) -> Measured:
    """Requests of a public trace beside endless batch work."""
    workload = co_serving(job.rate, trace=job.variant)
    run = Simulation(job.policy, workload, seed=job.seed, config=config_for(job.policy))
    run.run(live_requests=job.requests)
    return measure(run)


def adapters(job: Job) -> Measured:
    """32 tenants with an adapter each, Zipf 1.0, in 8 slots or in 32."""
    names = [f"adapter-{i}" for i in range(32)]
    size = dict(zip(names, random.Random(0).choices(ADAPTER_MB, k=32), strict=True))
    slots = SimulatedSlots(int(job.variant.split()[0]), lambda name: 0.002 * size[name])
    shares = [1 / (i + 1) for i in range(32)]
    tenants = tuple(
        Tenant(
            f"tenant-{i}",
            "interactive" if i % 2 == 0 else "standard",
            job.rate * share / sum(shares),
            adapters=(names[i],),
            cv=1.0,
        )
        for i, share in enumerate(shares)
    )
    run = Simulation(
        job.policy, Workload(tenants), seed=job.seed, config=config_for(job.policy), slots=slots
    )
    run.run(live_requests=job.requests)
    return measure(run)


def fairness(job: Job) -> Fairness:
    """Standard tenants that always wait: of different weights, or one with ten times as much waiting."""
    weights, depths = ENDLESS[job.variant]
    return judge(endless(weights, depths), config_for(job.policy), job.seed, job.requests)


def static(job: Job) -> Waste:
    return waste_of(heavy_tailed(job.requests, job.seed), STATIC_BATCH)


EXPERIMENTS: dict[str, Callable[[Job], Measured]] = {
    "co-serving": co_serve,
    "goodput": co_serve,
    "traces": traces,
    "adapters": adapters,
}
CHECKS: dict[str, Callable[[Job], Fairness | Waste]] = {"fairness": fairness, "static": static}


def mean_cost(trace: str = "co-serving", samples: int = 20_000) -> float:
    """Service that a request of this trace costs on average."""
    stream = Tenant("mean", "standard", 1.0, trace).arrivals(0)
    return (
        sum(a.num_prompt + 2 * a.num_output for a, _ in zip(stream, range(samples), strict=False))
        / samples
    )


def rate_for(load: float, trace: str = "co-serving") -> float:
    """Requests a second whose service is this share of what batch work alone gets."""
    return load * BATCH_ONLY_SERVICE / mean_cost(trace)


def jobs(*, is_quick: bool) -> list[Job]:
    """Everything `make sim` runs; the quick variant has one seed and few requests."""
    seeds, requests = (1, 150) if is_quick else (10, 10_000)
    few_seeds, few = (1, 100) if is_quick else (3, 2_000)
    made = [Job("co-serving", "batch only", "hfs", 0.0, 0, requests)]
    rates = [rate_for(load) for load in (0.5, 0.7)]
    for seed in range(seeds):
        for rate in rates:
            made += [
                Job("co-serving", "live only", "hfs", rate, seed, requests),
                Job("co-serving", "with batch", "hfs", rate, seed, requests),
            ]
    for seed in range(few_seeds):
        made += [Job("co-serving", "with batch", "priority", rate, seed, few) for rate in rates]
    to_try: dict[PolicyName, list[float]] = {
        "hfs": [7.0, 8.0, 8.5, 9.0],
        "priority": [0.25, 0.5, 1.0, 2.0, 3.0, 4.0],
    }
    for policy, rates in to_try.items():
        for rate in rates[:1] if is_quick else rates:
            made += [Job("goodput", "with batch", policy, rate, s, few) for s in range(few_seeds)]
    for seed in range(seeds):
        made.append(Job("goodput", "with batch", "hfs", GOODPUT, seed, requests))
        made += [Job("adapters", slots, "hfs", 6.0, seed, requests) for slots in SLOTS]
    for trace in TRACES if not is_quick else ("azure-code",):
        for policy_name in ("hfs", "priority", "fcfs"):
            made.append(Job("traces", trace, policy_name, rate_for(0.4, trace), 0, few // 2))  # type: ignore[arg-type]
    for seed in range(seeds):
        made += [Job("fairness", variant, "hfs", 0.0, seed, requests) for variant in ENDLESS]
        fewer = requests // 4  # all arrive at once, and a run ends 60 s after the last arrival
        made.append(Job("static", f"batches of {STATIC_BATCH}", "static", 0.0, seed, fewer))
    return made
