"""Hierarchical fair-slack: the step's time goes to deadlines, tiers, tenants and requests, in that order.

A step may last as long as the tightest stream can wait. Streams of live tiers come first, then their
prefills and admissions tier by tier, then batch work with what is left. Within a tier the tenant with
the least service is next; within a tenant the most urgent request.
"""

import math
from collections import deque
from heapq import heappop, heappush

from loraplex_engine.messages import TIERS, TenantShare, WaitReason
from loraplex_engine.scheduling.admission import Admission
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.filling import Draft, Filler
from loraplex_engine.scheduling.flows import Lane, Request, Tenant
from loraplex_engine.scheduling.outlook import Outlook
from loraplex_engine.scheduling.policy import (
    AdapterSlots,
    Explanation,
    KvCache,
    PolicyStats,
    StepPlan,
)
from loraplex_engine.scheduling.preemption import Preemptor
from loraplex_engine.scheduling.residency import Residency
from loraplex_engine.scheduling.step_model import StepLoad, StepModel
from loraplex_engine.sequence import Sequence


class Hfs:
    """The policy; see `schedule` for the order in which a step is filled."""

    def __init__(self, kv: KvCache, slots: AdapterSlots, config: SchedulerConfig) -> None:
        self.kv = kv
        self.config = config
        self.model = StepModel()
        self.lanes: list[Lane] = []
        for index, tier in enumerate(TIERS):
            above = self.lanes[-1] if self.lanes else None
            self.lanes.append(Lane(tier, index, config.targets[tier], above))
        self.live, self.batch = self.lanes[:-1], self.lanes[-1]
        self.residency = Residency(slots, config)
        self.preemptor = Preemptor(kv, self.residency, self.model, self.lanes, config)
        self.admission = Admission(kv, self.residency, self.preemptor, self.lanes, config)
        self.filler = Filler(kv, self.lanes, self.model, self.preemptor, self.admission, config)
        self.outlook = Outlook(kv, self.lanes, self.model, self.admission, config)
        self.cost_per_s = 0.0  # smoothed rate of service
        self._tenants: dict[str, Tenant] = {}
        self._requests: dict[Sequence, Request] = {}
        self._in_flight: deque[Draft] = deque()
        self._leaving: dict[Sequence, Request] = {}  # ended while a step in flight computes them
        self._uncopied: dict[Request, None] = {}  # batch requests with full blocks to checkpoint
        self._latest_starts: list[tuple[float, int, Request]] = []
        self._number = 0
        self._step = 0

    @property
    def running(self) -> list[Sequence]:
        return [r.seq for lane in self.lanes for r in (*lane.decodes, *lane.prefills)]

    @property
    def waiting(self) -> list[Sequence]:
        return [r.seq for lane in self.lanes for flow in lane.backlog for r in flow.waiting]

    @property
    def stats(self) -> PolicyStats:
        return PolicyStats(
            bypasses=sum(lane.num_bypasses for lane in self.lanes),
            drains=self.residency.num_drains,
            lends=self.residency.num_lends,
            gap_ratio=max(map(self._gap_ratio, self.live)),
        )

    def _gap_ratio(self, lane: Lane) -> float:
        """Spread of the counters of those who wait, over what one can accrue once admitted."""
        flows = [flow for flow in lane.backlog if not flow.is_capped(self.kv.num_blocks)]
        if len(flows) < 2:
            return 0.0
        counters = [flow.counter for flow in flows]
        accruable = self.config.decode_cost * self.kv.num_blocks * self.kv.block_size
        bound = accruable / min(flow.tenant.share.weight for flow in flows)
        return (max(counters) - min(counters)) / (bound + self.config.locality_window)

    def set_share(self, share: TenantShare) -> None:
        self._tenant(share.tenant).share = share
        is_capped = share.max_running is not None or share.kv_share is not None
        self.admission.has_caps = self.admission.has_caps or is_capped

    def add(self, seq: Sequence, now: float) -> None:
        self._number += 1
        lane = self.lanes[TIERS.index(seq.tier)]
        due_s = seq.arrival_s + lane.target.ttft_s
        # A long prompt's deadline is read as later: short ones need not miss theirs behind it.
        size_s = self.config.size_slack * self.model.prefill_s(seq.num_prompt_tokens)
        by = math.inf if seq.deadline_s is None else seq.deadline_s
        request = Request(
            seq=seq,
            flow=lane.flow(self._tenant(seq.tenant)),
            number=self._number,
            due_s=due_s,
            urgency=(min(due_s + size_s, by), self._number),
            tpot_s=lane.target.tpot_s,
        )
        self._requests[seq] = request
        request.flow.push(request)
        if lane is self.batch and seq.deadline_s is not None and self.cost_per_s:
            share = max(lane.target.floor, 0.01) * self.cost_per_s
            latest = seq.deadline_s - self.outlook.cost(request) / share
            heappush(self._latest_starts, (latest, request.number, request))

    def finish(self, seq: Sequence, now: float, *, is_cut: bool = False) -> None:
        request = self._requests.get(seq)
        if request is None:
            return
        if seq.output_ids and not is_cut:
            self.admission.lengths.observe(seq.tenant, seq.adapter, seq.tier, len(seq.output_ids))
        self._forget(request)
        if not request.is_admitted:
            request.flow.remove(request)
            request.flow.lane.forgive(request)
            self.residency.release(request)
            return
        request.flow.lane.leave(request)
        if any(item.seq is seq for draft in self._in_flight for item in draft.plan.items):
            self._leaving[seq] = request  # its blocks and slot are in use until that step ends
        else:
            self.preemptor.release(request)

    def schedule(self, now: float) -> StepPlan:
        self._step += 1
        self._promote(now)
        filler, quantum = self.filler, self.config.floor_quantum
        draft = Draft(now, filler.budget(now), step=self._step)
        self.residency.begin_step(draft.plan, now)
        if any(request.is_live for request in self.residency.overdue):
            self.preemptor.free_slot(draft.plan)
        filler.decode(self.live, draft)
        # Tiers in order; but one that fell a quantum behind its floor comes first.
        owed = {lane for lane in self.lanes if lane.lag >= quantum}
        for lane in sorted(self.lanes, key=lambda lane: (lane not in owed, lane.index)):
            if lane is not self.batch:
                filler.fill(lane, draft)
            elif lane in owed:
                self._fill_batch(draft)
        filler.feed_the_hungry(draft)
        if self.batch not in owed:
            draft.budget_s = min(draft.budget_s, filler.fill_budget())
            self._fill_batch(draft)
        self.residency.fill_idle_slots(draft.plan)
        if not draft.plan.items:
            filler.force_progress(draft)
        while self.preemptor.aborted:
            self._forget(self.preemptor.aborted.pop())
        self._checkpoint(draft)
        draft.cost = sum(lane.served for lane in self.lanes)
        for lane in self.lanes:
            lane.settle(draft.cost, quantum)
        draft.plan.predicted_s = self.model.predict(draft.load) + self._copy_s(draft.plan)
        self._in_flight.append(draft)
        return draft.plan

    def observe(self, plan: StepPlan, seconds: float, now: float) -> None:
        draft = self._in_flight.popleft()
        assert draft.plan is plan, "plans are observed in the order they were made"
        if plan.items:
            self.model.observe(draft.load, max(1e-6, seconds - self._copy_s(plan)))
            self.cost_per_s += 0.05 * (draft.cost / max(seconds, 1e-6) - self.cost_per_s)
        size = self.kv.block_size
        for seq, start, num_tokens, samples in plan.items:
            if seq.is_finished:
                self._let_go(seq)
            elif (start + num_tokens) // size > start // size:
                self.kv.commit(seq)
                if seq.tier == "batch" and self.config.num_host_blocks:
                    self._uncopied[self._requests[seq]] = None
            if samples and seq.phase == "prefill" and not seq.is_finished:
                self._first_token(self._requests[seq], now)

    def learn(self, plan: StepPlan, seconds: float) -> None:
        load = StepLoad()
        for item in plan.items:
            load.add(item.start, item.num_tokens)
        self.model.observe(load, seconds)

    def _fill_batch(self, draft: Draft) -> None:
        self.filler.decode([self.batch], draft)
        self.filler.fill(self.batch, draft)

    def _first_token(self, request: Request, now: float) -> None:
        """From here on the stream's deadlines count; what was left of its TTFT is not spent on."""
        request.seq.phase = "decode"
        if math.isinf(request.due_s):
            request.due_s = now + request.tpot_s

    def _forget(self, request: Request) -> None:
        """It ends: nobody waits for what it computes, and nothing of it is kept."""
        request.seq.is_finished = True
        del self._requests[request.seq]
        self.admission.stop_computing(request)
        self._uncopied.pop(request, None)
        self.preemptor.host.drop(request)

    def _let_go(self, seq: Sequence) -> None:
        """Free what a finished sequence holds, unless a later step in flight computes it too."""
        request = self._leaving.get(seq)
        if request is None or any(
            item.seq is seq for draft in self._in_flight for item in draft.plan.items
        ):
            return
        del self._leaving[seq]
        self.kv.commit(seq)
        self.preemptor.release(request)

    def _checkpoint(self, draft: Draft) -> None:
        """Copy batch work's full blocks out, as many as the step hides."""
        hidden_s = self.config.copy_overlap * self.model.predict(draft.load)
        limit = int(hidden_s / self.config.copy_s_per_block)
        if limit == 0:
            return
        for request in list(self._uncopied):
            if request.is_admitted:
                copies = self.preemptor.host.checkpoint(request, limit)
                draft.plan.copies += copies
                limit -= len(copies)
                if limit <= 0:
                    return
            del self._uncopied[request]

    def _copy_s(self, plan: StepPlan) -> float:
        """Time that copies which the forward pass does not hide add to the step."""
        if not plan.copies:
            return 0.0
        exposed = 1 - self.config.copy_overlap
        to_device = sum(copy.direction == "to_device" for copy in plan.copies)
        return to_device * exposed * self.config.copy_s_per_block

    def reason(self, seq: Sequence) -> WaitReason | None:
        request = self._requests.get(seq)
        if request is None or request.is_admitted:
            return None
        return request.reason or "priority"

    def explain(self, seq: Sequence, now: float) -> Explanation:
        request = self._requests.get(seq)
        if request is None or request.is_admitted:
            return Explanation(None, 0, None)
        ahead = self.outlook.ahead_of(request)
        expected_s = self.outlook.wait_s(request, ahead)
        return Explanation(self.reason(seq), len(ahead), expected_s, self._detail(request))

    def _detail(self, request: Request) -> str:
        behind = request.flow.counter - request.flow.lane.virtual
        return f"{request.flow.lane.tier}: {behind:.0f} tokens ahead of the fair share"

    def _tenant(self, name: str) -> Tenant:
        return self._tenants.setdefault(name, Tenant(TenantShare(name)))

    def _promote(self, now: float) -> None:
        """Batch requests that would miss their deadline at the floor's rate move up one tier."""
        while self._latest_starts and self._latest_starts[0][0] < now:
            *_, request = heappop(self._latest_starts)
            if request.is_admitted or request.seq.is_finished:
                continue
            request.flow.remove(request)
            request.flow.lane.forgive(request)
            request.flow = self.live[-1].flow(request.flow.tenant)
            request.due_s = request.seq.deadline_s or math.inf
            request.flow.push(request)
