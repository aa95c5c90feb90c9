"""The engine's loop: commands in, one step at a time, events out. Knows no socket and no clock of its own."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from loraplex_engine.adapter_tier import AdapterTier
from loraplex_engine.fairness import Fairness
from loraplex_engine.intake import Served, live_request, refusal
from loraplex_engine.live_request import Ending
from loraplex_engine.messages import (
    Abort,
    AdapterFailed,
    CheckAdapter,
    Command,
    Drain,
    DropAdapter,
    DropPrefix,
    EngineStats,
    Event,
    Explain,
    Explanation,
    Generate,
    Hello,
    PinAdapter,
    PreloadAdapter,
    RegisterPrefix,
    SetTenant,
    TenantShare,
)
from loraplex_engine.metrics import Meter
from loraplex_engine.prefixes import Prefixes
from loraplex_engine.promptness import Deadlines, too_late
from loraplex_engine.roster import Roster, fault_of
from loraplex_engine.runner import Runner
from loraplex_engine.scheduling.policy import Policy, PrefixCache, StepPlan
from loraplex_engine.snapshot import engine_stats, explanation

log = logging.getLogger(__name__)

DRAINING = Ending("error", error="unavailable", message="the engine is draining")
SACRIFICED = Ending("error", error="overloaded", message="it made way for other requests")
DELETED = Ending("error", error="unknown_adapter", message="the adapter was deleted")


class _InFlight(NamedTuple):
    plan: StepPlan
    handle: Any
    launched_s: float


class Engine:
    """One model replica. Not thread-safe: submit and step belong to one thread.

    Every accepted Generate ends in exactly one Finished. Events are returned by `step`, answers to
    commands included, so a caller steps while `has_work` and sleeps a little after a step that was
    `is_stalled` (work exists, but all of it waits, for example for an adapter).
    """

    def __init__(
        self,
        served: Served,
        runner: Runner[Any],
        policy: Policy,
        kv: PrefixCache,
        adapters: AdapterTier,
        clock: Callable[[], float] = time.monotonic,
        steps_ahead: int = 0,
    ) -> None:
        self.served = served
        self.runner = runner
        self.policy = policy
        self.kv = kv
        self.adapters = adapters
        self.clock = clock
        self.steps_ahead = steps_ahead  # launched before the one in flight is collected: 0 or 1
        self.prefixes = Prefixes(kv, served, adapters.tokens)
        self._in_flight: deque[_InFlight] = deque()
        self._collected_s = -math.inf  # when the last step ended: the next one began then
        self._meter = Meter(served.max_num_batched_tokens)
        self._roster = Roster(policy, self.prefixes, self._meter, clock)
        self._fairness = Fairness(self._meter.service_of)
        self._stats_number = 0
        self._drain_until_s: float | None = None
        self._leaving = Deadlines()  # of what ran on versions that were dropped
        self._is_stalled = False

    @property
    def hello(self) -> Hello:
        return self.served.hello

    @property
    def has_work(self) -> bool:
        return bool(self._roster or self._roster.events or self._in_flight)

    @property
    def is_stalled(self) -> bool:
        """Whether the last step had nothing to compute."""
        return self._is_stalled

    @property
    def is_drained(self) -> bool:
        """Whether a Drain was asked for and nothing is left to do."""
        return self._drain_until_s is not None and not self.has_work

    def submit(self, command: Command) -> None:
        """Take a command between steps; what it has to say comes out of the next step."""
        match command:
            case Generate():
                self._generate(command)
            case Abort(request_id):
                self._roster.end(request_id, Ending("abort"))
            case SetTenant(share):
                self._set_share(share)
            case RegisterPrefix():
                self._register(command)
            case DropPrefix(prefix_id):
                self.prefixes.drop(prefix_id)
            case PreloadAdapter(adapter):
                self.adapters.start_load(adapter)
            case PinAdapter(adapter, _, pinned):
                self.adapters.pin(adapter, pinned)
                if pinned:
                    self.adapters.start_load(adapter)
            case DropAdapter(adapter, remaining_s):
                self.adapters.drop(adapter)
                if remaining_s is not None:
                    due_s = self.clock() + remaining_s
                    for live in self._roster.users_of(adapter):
                        self._leaving.add(live.seq.request_id, due_s)
            case CheckAdapter(adapter):
                self.adapters.check(adapter)
            case Explain(request_id):
                self._roster.events.append(self._explain(request_id))
            case Drain(remaining_s):
                self._drain_until_s = self.clock() + remaining_s

    def step(self) -> list[Event]:
        """Plan, compute and judge one step; returns all events since the last call."""
        self._poll_adapters()
        self._roster.end_expired()
        for request_id in self._leaving.take_due(self.clock()):
            self._leave(request_id)
        self._drain()
        plan = self._schedule()
        for preemption in plan.preemptions:
            if preemption.mode == "abort":
                self._roster.end(preemption.seq.request_id, SACRIFICED)
        for adapter in plan.loads:
            self.adapters.start_load(adapter)
        self._is_stalled = not plan.items and not self._in_flight
        # A fault of a copy would leave KV that nobody can trust: it ends the process.
        self.runner.copy_blocks(plan.copies)
        if plan.items:
            self._launch(plan)
        while len(self._in_flight) > (self.steps_ahead if plan.items else 0):
            self._collect(self._in_flight.popleft())
        if not plan.items:
            self.policy.observe(plan, 0.0, self.clock())
        events, self._roster.events = self._roster.events, []
        return events

    def _schedule(self) -> StepPlan:
        started_s = self.clock()
        plan = self.policy.schedule(started_s)
        self._meter.observe_plan(plan, self.clock() - started_s)
        return plan

    def stats(self) -> EngineStats:
        """A fresh snapshot; each has its own sequence number."""
        now = self.clock()
        self._stats_number += 1
        live = (each.seq for each in self._roster)
        stats = engine_stats(
            self.served, self.policy, self.kv, self.adapters, self._meter, live, now
        )
        return replace(
            stats,
            sequence_number=self._stats_number,
            scheduler=self._meter.scheduler(
                self._fairness.jain(now, self.policy.waiting), self.policy.stats
            ),
            draining=self._drain_until_s is not None,
            prefixes=tuple(self.prefixes.stats()),
        )

    def _generate(self, request: Generate) -> None:
        if self._roster.get(request.request_id) is not None:
            log.error("request id %s is already live; ignored", request.request_id)
            return
        now = self.clock()
        live = live_request(request, self.served, now, self.adapters.tokens)
        ending = refusal(request, self.served, live.vocabulary.size)
        if self._drain_until_s is not None:
            ending = DRAINING
        if ending is not None:
            self._roster.events.append(live.finished(ending, now))
            return
        if request.share is not None:
            self._set_share(request.share)
        self._roster.add(live, now, request.remaining_s)
        if request.adapter is not None:
            self.adapters.prefetch(request.adapter, request.tenant)
        if request.tier != "batch":
            expected_s = self.policy.explain(live.seq, now).expected_s
            ending = too_late(request, expected_s, self.served.max_queue_s)
            if ending is not None:
                self._roster.end(request.request_id, ending)

    def _set_share(self, share: TenantShare) -> None:
        self.policy.set_share(share)
        self._fairness.weights[share.tenant] = share.weight

    def _register(self, command: RegisterPrefix) -> None:
        live = self.prefixes.register(command, self.clock())
        if live is not None and self._drain_until_s is None:
            self._roster.end(live.seq.request_id, Ending("abort"))  # an earlier prefix of this id
            self._roster.add(live, self.clock())

    def _launch(self, plan: StepPlan) -> None:
        now = self.clock()
        try:
            handle = self.runner.launch(plan)
        except Exception as fault:
            while self._in_flight:  # steps are judged in their order
                self._collect(self._in_flight.popleft())
            self._fail_step(plan, now, fault)
        else:
            self._in_flight.append(_InFlight(plan, handle, now))

    def _collect(self, step: _InFlight) -> None:
        plan = step.plan
        try:
            outcome = self.runner.collect(step.handle)
        except Exception as fault:
            self._fail_step(plan, step.launched_s, fault)
            return
        now = self.clock()
        seconds, num_tokens = now - max(step.launched_s, self._collected_s), plan.num_tokens
        self._collected_s = now
        for item, sampled in zip(plan.items, outcome, strict=True):
            item.seq.engine_s += seconds * item.num_tokens / num_tokens
            self._roster.advance(item, sampled, now)
        self.policy.observe(plan, seconds, now)
        self._meter.observe(plan, seconds)

    def _fail_step(self, plan: StepPlan, launched_s: float, fault: Exception) -> None:
        """End the sequences of a step that went wrong; the others go on."""
        log.error("a step failed", exc_info=fault)
        for item in plan.items:
            item.seq.num_pending -= item.samples
            item.seq.num_scheduled = item.seq.num_computed
            self._roster.end(item.seq.request_id, fault_of(fault))
        now = self.clock()
        self.policy.observe(plan, now - launched_s, now)

    def _drain(self) -> None:
        if self._drain_until_s is not None and self.clock() >= self._drain_until_s:
            self._roster.end_all(DRAINING)

    def _leave(self, request_id: str) -> None:
        """The time is over of a request that ran on its version when that was dropped."""
        live = self._roster.get(request_id)
        if live is None or live.seq.adapter is None:
            return
        self._roster.end(request_id, DELETED)
        if not self._roster.users_of(live.seq.adapter):  # else it has been added again
            self.adapters.drop(live.seq.adapter)  # it waited, and may have brought it back

    def _poll_adapters(self) -> None:
        for outcome in self.adapters.poll():
            if outcome.error is None:
                continue
            self._roster.events.append(AdapterFailed(outcome.version, outcome.error))
            ending = Ending("error", error="unknown_adapter", message=outcome.error)
            # Nobody can be computing with it: who runs has lent its slot.
            for live in self._roster.users_of(outcome.version):
                self._roster.end(live.seq.request_id, ending)

    def _explain(self, request_id: str) -> Explanation:
        live = self._roster.get(request_id)
        if live is None:
            return Explanation(request_id, None, None, 0, None)
        return explanation(live.seq, self.policy, self.clock())
