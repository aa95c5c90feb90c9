"""A discrete-event simulator around a real policy and the real KV book-keeping; only time is synthetic."""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tests.sim.workloads import Arrival, Workload, to_sequence

from loraplex_engine.messages import TenantShare, Tier
from loraplex_engine.prefix_cache import PagedKv
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.policies import PolicyName, make_policy
from loraplex_engine.scheduling.policy import AdapterState, Policy, StepPlan
from loraplex_engine.scheduling.step_model import StepLoad, StepModel
from loraplex_engine.sequence import Sequence

BLOCK_SIZE = 16
GRACE_S = 60.0  # what has not ended so long after the last arrival is a miss
EXPOSED_COPY_S = 0.2 * 4e-5  # of a block that comes back: four fifths hide behind the step


class StepTimes(Protocol):
    """The machine: how long a step really takes."""

    def seconds(self, load: StepLoad) -> float: ...


@dataclass
class LinearSteps:
    """6 ms + 32 µs a token + 40 ns a token of context, give or take the noise."""

    base_s: float = 0.006
    per_token_s: float = 3.2e-5
    per_context_s: float = 4e-8
    noise: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def seconds(self, load: StepLoad) -> float:
        exact = self.base_s + self.per_token_s * load.num_tokens + self.per_context_s * load.context
        return exact * (1 + self.rng.uniform(-self.noise, self.noise)) if self.noise else exact


@dataclass
class FittedSteps:
    """A step model fitted to measured steps, with their residuals drawn again."""

    model: StepModel
    residuals: list[float]
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    @classmethod
    def from_samples(cls, samples: list[tuple[StepLoad, float]]) -> "FittedSteps":
        model = StepModel()
        for load, seconds in samples * 3:
            model.observe(load, seconds)
        return cls(model, [seconds / model.predict(load) - 1 for load, seconds in samples])

    def seconds(self, load: StepLoad) -> float:
        return self.model.predict(load) * (1 + self.rng.choice(self.residuals))


class SimulatedSlots:
    """Adapter slots whose loads take time on one copy engine; idle ones leave least recently used."""

    def __init__(self, num_slots: int, load_s: Callable[[str], float]) -> None:
        self.num_slots = num_slots
        self.load_s = load_s
        self.users: dict[str, int] = {}  # resident ones, least recently used first
        self.loading: dict[str, float] = {}  # until when
        self.num_loads = 0
        self._engine_free_s = 0.0

    def state(self, adapter: str) -> AdapterState:
        if adapter in self.users:
            return "resident"
        return "loading" if adapter in self.loading else "absent"

    def can_load(self, adapter: str) -> bool:
        return len(self.users) + len(self.loading) < self.num_slots or 0 in self.users.values()

    def blockers(self, adapter: str, remaining: Callable[[str], float]) -> tuple[str, ...] | None:
        in_use = [name for name, count in self.users.items() if count]
        return (min(in_use, key=remaining),) if in_use else None

    def acquire(self, adapter: str) -> None:
        self.users[adapter] = self.users.pop(adapter) + 1

    def release(self, adapter: str) -> None:
        assert self.users[adapter] > 0
        self.users[adapter] -= 1

    def load(self, adapter: str, now: float) -> None:
        if self.state(adapter) != "absent" or not self.can_load(adapter):
            return
        if len(self.users) + len(self.loading) >= self.num_slots:
            del self.users[next(name for name, count in self.users.items() if count == 0)]
        self.num_loads += 1
        self._engine_free_s = max(now, self._engine_free_s) + self.load_s(adapter)
        self.loading[adapter] = self._engine_free_s

    def advance(self, now: float) -> None:
        for adapter in [name for name, until in self.loading.items() if until <= now]:
            del self.loading[adapter]
            self.users[adapter] = 0

    @property
    def next_event_s(self) -> float | None:
        return min(self.loading.values(), default=None)


@dataclass(slots=True)
class Outcome:
    """What became of one request."""

    tenant: str
    tier: Tier
    arrival_s: float
    num_prompt: int
    num_output: int
    first_s: float | None = None
    last_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        assert self.first_s is not None
        assert self.last_s is not None
        return (self.last_s - self.first_s) / max(1, self.num_output - 1)


class Slice(NamedTuple):
    """What one step gave to one tenant in one tier, in prefill tokens' worth."""

    at_s: float
    seconds: float
    tenant: str
    tier: Tier
    prefill_tokens: int
    decode_tokens: int


@dataclass(slots=True)
class Life:
    """A sequence on its way: what the model will say, and how far it ever got."""

    outcome: Outcome
    num_output: int
    num_reached: int = 0  # tokens computed at least once


@dataclass
class Totals:
    """Sums over a run."""

    prefill_tokens: Counter[str] = field(default_factory=Counter)  # by tier, each counted once
    decode_tokens: Counter[str] = field(default_factory=Counter)
    recomputed_tokens: int = 0
    preemptions: int = 0
    copies: int = 0
    steps: int = 0
    busy_s: float = 0.0
    model_error: float = 0.0

    def service(self, tier: str, decode_cost: float = 2.0) -> float:
        return self.prefill_tokens[tier] + decode_cost * self.decode_tokens[tier]


class Simulation:
    """One engine, one policy, one workload."""

    def __init__(
        self,
        policy: PolicyName,
        workload: Workload,
        *,
        seed: int = 0,
        config: SchedulerConfig | None = None,
        num_tokens: int = 120_000,
        steps: StepTimes | None = None,
        slots: SimulatedSlots | None = None,
        on_step: Callable[["Simulation", StepPlan, float], None] | None = None,
    ) -> None:
        self.workload = workload
        self.seed = seed
        self.kv = PagedKv(num_tokens // BLOCK_SIZE, BLOCK_SIZE, caching=workload.prefixes)
        self.slots = slots or SimulatedSlots(8, lambda adapter: 0.0)
        self.config = config or SchedulerConfig(max_num_seqs=160)
        self.policy: Policy = make_policy(policy, self.kv, self.slots, self.config)
        self.steps = steps or LinearSteps(noise=0.013, rng=random.Random(seed))
        self.on_step = on_step
        self.now = 0.0
        self.totals = Totals()
        self.outcomes: list[Outcome] = []
        self.lives: dict[Sequence, Life] = {}
        self.num_live_finished = 0
        self._number = 0
        self._num_to_come = math.inf
        self._last_arrival_s = 0.0
        self._arrivals: list[tuple[float, int, Arrival, Iterator[Arrival]]] = []
        self._backlogs = [(each, each.arrivals(seed)) for each in workload.backlogs]
        self._unstarted: dict[str, list[Sequence]] = {}  # of each backlog
        for backlog in workload.backlogs:
            self.policy.set_share(TenantShare(backlog.tenant, weight=backlog.weight))
        for tenant in workload.tenants:
            self.policy.set_share(TenantShare(tenant.name, weight=tenant.weight))
            self._push(tenant.arrivals(seed))

    def run(self, *, live_requests: int | None = None, until_s: float = math.inf) -> None:
        """Until `until_s`; or so many live requests arrived and ended, but for GRACE_S at most."""
        self._num_to_come = math.inf if live_requests is None else live_requests
        while self.now < until_s:
            self._deliver()
            if self._num_to_come <= 0:
                until_s = min(until_s, self._last_arrival_s + GRACE_S)
                if self.num_live_finished == len(self.outcomes):
                    return
            plan = self.policy.schedule(self.now)
            if plan.items:
                self._execute(plan)
            else:
                self._idle(plan, until_s)

    def _push(self, source: Iterator[Arrival]) -> None:
        arrival = next(source, None)
        if arrival is not None:
            self._number += 1
            heapq.heappush(self._arrivals, (arrival.at_s, self._number, arrival, source))

    def _deliver(self) -> None:
        self.slots.advance(self.now)
        while self._num_to_come > 0 and self._arrivals and self._arrivals[0][0] <= self.now:
            _, _, arrival, source = heapq.heappop(self._arrivals)
            self._num_to_come -= 1
            self._last_arrival_s = arrival.at_s
            self.submit(arrival, arrival.at_s)
            self._push(source)
        for backlog, source in self._backlogs:
            waiting = self._unstarted.get(backlog.tenant, [])
            waiting = [seq for seq in waiting if seq.admitted_s is None]
            while len(waiting) < backlog.depth:
                waiting.append(self.submit(next(source), self.now))
            self._unstarted[backlog.tenant] = waiting

    def submit(self, arrival: Arrival, at_s: float) -> Sequence:
        self._number += 1
        seq = to_sequence(arrival, self._number, at_s, self.workload)
        outcome = Outcome(
            arrival.tenant, arrival.tier, at_s, arrival.num_prompt, arrival.num_output
        )
        if arrival.tier != "batch":
            self.outcomes.append(outcome)
        self.lives[seq] = Life(outcome, arrival.num_output)
        self.policy.add(seq, self.now)
        return seq

    def _idle(self, plan: StepPlan, until_s: float) -> None:
        """Nothing can run: go to the next arrival or the end of a load."""
        self._start_loads(plan)
        self.policy.observe(plan, 0.0, self.now)
        times = [self._arrivals[0][0]] if self._arrivals and self._num_to_come > 0 else []
        if self.slots.next_event_s is not None:
            times.append(self.slots.next_event_s)
        if until_s < math.inf:
            times.append(until_s)
        assert times, "the policy plans nothing and nothing will ever happen"
        self.now = max(self.now, min(times))

    def _start_loads(self, plan: StepPlan) -> None:
        for adapter in plan.loads:
            self.slots.load(adapter, self.now)

    def _execute(self, plan: StepPlan) -> None:
        self._start_loads(plan)
        seconds = self._seconds(plan)
        if self.on_step is not None:
            self.on_step(self, plan, seconds)
        self.now += seconds
        self._count(plan, seconds)
        lives, decode_tokens = self.lives, self.totals.decode_tokens
        for seq, start, num_tokens, samples in plan.items:
            seq.num_computed = start + num_tokens
            outputs = seq.output_ids
            if num_tokens == 1 and outputs:
                decode_tokens[seq.tier] += 1
            else:
                self._count_prefill(seq, start, num_tokens)
            if samples:
                outputs.append(0)
                seq.num_pending -= 1
                life = lives[seq]
                if len(outputs) == 1:
                    life.outcome.first_s = seq.first_token_s = self.now
                if len(outputs) == life.num_output:
                    life.outcome.last_s = self.now
                    self.num_live_finished += seq.tier != "batch"
                    self.policy.finish(seq, self.now)
                    del lives[seq]
        self.policy.observe(plan, seconds, self.now)

    def _seconds(self, plan: StepPlan) -> float:
        """How long the machine takes, whatever the policy predicted."""
        load = StepLoad()
        decodes = [item for item in plan.items if item.num_tokens == 1]
        load.add_decodes(len(decodes), sum([item.start for item in decodes]) + len(decodes))
        for item in plan.items:
            if item.num_tokens > 1:
                load.add(item.start, item.num_tokens)
        to_device = sum([copy.direction == "to_device" for copy in plan.copies])
        return self.steps.seconds(load) + to_device * EXPOSED_COPY_S

    def _count(self, plan: StepPlan, seconds: float) -> None:
        totals = self.totals
        totals.steps += 1
        totals.busy_s += seconds
        totals.copies += len(plan.copies)
        totals.preemptions += len(plan.preemptions)
        totals.model_error += abs(seconds / plan.predicted_s - 1) if plan.predicted_s else 0.0
        for preemption in plan.preemptions:
            if preemption.mode == "recompute":
                life = self.lives[preemption.seq]
                life.num_reached = max(life.num_reached, preemption.seq.num_known - 1)

    def _count_prefill(self, seq: Sequence, start: int, num_tokens: int) -> None:
        life, end = self.lives[seq], start + num_tokens
        num_new = max(0, end - max(start, life.num_reached))
        self.totals.prefill_tokens[seq.tier] += num_new
        self.totals.recomputed_tokens += num_tokens - num_new
        life.num_reached = max(life.num_reached, end)
