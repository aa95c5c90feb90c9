"""Filling one step: how long it may last, and who gets its time."""

import math
from dataclasses import dataclass, field, replace

from loraplex_engine.scheduling.admission import Admission
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.flows import Lane, Request, is_busy
from loraplex_engine.scheduling.policy import KvCache, ScheduledTokens, StepPlan, take
from loraplex_engine.scheduling.preemption import Preemptor
from loraplex_engine.scheduling.step_model import StepLoad, StepModel

MIN_CHUNK = 16  # tokens: a shorter piece of a prompt is not worth its place in a step
# Where a step's fixed part is long (a CPU reads all weights), one shorter than so many of them wastes most of
# its time, whatever the targets. Streams wait for the end of each step, prompts for the last's; where only
# batch work runs, whoever comes next waits.
FIXED_PARTS_OF_STREAMS = 3
FIXED_PARTS_OF_PROMPTS = 6
FIXED_PARTS_OF_BATCH = 2
HUNGRY_STEPS = 4  # so many steps may pass without a prefill while live prompts wait


@dataclass(slots=True)
class Draft:
    """A step in the making."""

    now: float
    budget_s: float
    plan: StepPlan = field(default_factory=StepPlan)
    load: StepLoad = field(default_factory=StepLoad)
    step: int = 0
    cost: float = 0.0


class Filler:
    """Puts tokens into a draft: streams, chunks of prompts, and requests that start."""

    def __init__(
        self,
        kv: KvCache,
        lanes: list[Lane],
        model: StepModel,
        preemptor: Preemptor,
        admission: Admission,
        config: SchedulerConfig,
    ) -> None:
        self.kv = kv
        self.lanes = lanes
        self.live, self.batch = lanes[:-1], lanes[-1]
        self.model = model
        self.preemptor = preemptor
        self.admission = admission
        self.config = config
        self._least_chunk = min(MIN_CHUNK, config.max_num_batched_tokens)
        self._hungry = 0  # steps since a live prompt got a chunk while one wanted it

    def budget(self, now: float) -> float:
        """How long the step may last."""
        config, target = self.config, math.inf
        soonest = math.inf
        for lane in self.live:
            streams = self._streams([lane])
            if streams:
                soonest = min(soonest, min([request.due_s for request in streams]))
                target = min(target, lane.target.tpot_s)
        if target < math.inf:
            longest = min(soonest - now, config.step_cap_s)
            budget = max(longest, config.decode_step_share * target)
            fixed_parts = FIXED_PARTS_OF_STREAMS
        elif self._has_live_work():
            budget, fixed_parts = config.step_cap_s, FIXED_PARTS_OF_PROMPTS
        else:
            budget, fixed_parts = config.idle_step_s, FIXED_PARTS_OF_BATCH
        least = StepLoad()
        least.add(0, config.min_step_tokens)
        least_s = max(self.model.predict(least), fixed_parts * self.model.base_s)
        return max(budget / (1 + self.model.margin), least_s)

    def fill_budget(self) -> float:
        """How far batch work may stretch the step: an arrival would wait for its end.

        Longer steps also keep live requests, and their blocks, for longer; so batch work makes way
        as live requests come to need the blocks, before they have to queue for them.
        """
        if not self._has_live_work():
            return math.inf
        low, high = self.config.batch_gate
        used = sum(lane.footprint for lane in self.live) / (self.kv.num_blocks * self.kv.block_size)
        share = min(1.0, max(0.0, (high - used) / (high - low)))
        return self.config.fill_step_s * share / (1 + self.model.margin)

    def _has_live_work(self) -> bool:
        return any(lane.decodes or lane.prefills or lane.backlog for lane in self.live)

    def _room(self, draft: Draft, start: int) -> int:
        """Tokens that a chunk from position `start` may have."""
        room = self.model.room(draft.load, draft.budget_s, start)
        return min(room, self.config.max_num_batched_tokens - draft.load.num_tokens)

    def _streams(self, lanes: list[Lane]) -> list[Request]:
        """Those that decode and have not lent their slot."""
        paused = self.admission.residency.paused
        streams = [request for lane in lanes for request in lane.decodes]
        return [r for r in streams if r not in paused] if paused else streams

    def decode(self, lanes: list[Lane], draft: Draft) -> None:
        """One token for every stream; for the most urgent only, if the step is too short for all."""
        decodes = self._streams(lanes)
        if not decodes:
            return
        context = sum([request.seq.num_scheduled for request in decodes]) + len(decodes)
        whole = replace(draft.load)
        whole.add_decodes(len(decodes), context)
        if self.model.predict(whole) > draft.budget_s:
            decodes = self._urgent(decodes, draft)
        items = draft.plan.items
        first = len(items)
        for request in decodes:
            seq = request.seq
            start = seq.num_scheduled
            if start >= request.capacity and not self._grow(request, draft):
                continue
            if seq.num_pending and len(seq.output_ids) + seq.num_pending >= seq.sampling.max_tokens:
                continue
            seq.num_scheduled = start + 1
            seq.num_pending += 1
            items.append(ScheduledTokens(seq, start, 1, True))
            request.due_s += request.tpot_s
            request.flow.counter += request.decode_price
        planned = len(items) - first
        if planned == sum([len(lane.decodes) for lane in lanes]):
            for lane in lanes:
                lane.served += self.config.decode_cost * len(lane.decodes)
        else:
            context = sum(item.start + 1 for item in items[first:])
            chosen = {item.seq for item in items[first:]}
            for lane in lanes:
                count = sum(request.seq in chosen for request in lane.decodes)
                lane.served += self.config.decode_cost * count
        draft.load.add_decodes(planned, context)

    def _urgent(self, decodes: list[Request], draft: Draft) -> list[Request]:
        """As many as fit, those first whose token is due first."""
        load = replace(draft.load)
        chosen = []
        for request in sorted(decodes, key=lambda request: (request.due_s, request.number)):
            load.add(request.seq.num_scheduled, 1)
            if self.model.predict(load) > draft.budget_s:
                break
            chosen.append(request)
        return chosen

    def _grow(self, request: Request, draft: Draft) -> bool:
        """A further block for a stream, and a fresh look at how long it gets."""
        if not request.is_admitted:  # preempted a moment ago
            return False
        generated = len(request.seq.output_ids)
        if generated >= request.estimate or generated % 64 < self.kv.block_size:
            request.flow.lane.revise(request, self.admission.forecast(request))
        end = request.seq.num_scheduled + 1
        return self.preemptor.make_room(request, end, draft.plan, draft.step)

    def fill(self, lane: Lane, draft: Draft) -> None:
        """Prefill chunks and admissions of one tier, the most urgent first."""
        prefills = sorted(lane.prefills, key=lambda request: request.urgency, reverse=True)
        may_admit = True
        while self._room(draft, 0) >= self._least_chunk:
            head = self._next(lane, draft) if may_admit else None
            may_admit = head is not None
            if head is not None and not (prefills and prefills[-1].urgency < head.urgency):
                if not self._admit(head, draft):
                    head.flow.blocked_step = draft.step
                    lane.deny(head, "kv", draft.now)
            elif prefills:
                self.chunk(prefills.pop(), draft)
            else:
                return

    def _next(self, lane: Lane, draft: Draft) -> Request | None:
        if sum(other.num_running for other in self.lanes) >= self.config.max_num_seqs and not (
            lane.is_live and self.batch.num_running
        ):
            return None
        return self.admission.pick(lane, draft.plan, draft.now, draft.step)

    def _admit(self, request: Request, draft: Draft) -> bool:
        """Give a waiting request its seat, blocks, slot and first tokens; or nothing."""
        seq, lane = request.seq, request.flow.lane
        if sum(other.num_running for other in self.lanes) >= self.config.max_num_seqs and not (
            lane.is_live and self.preemptor.free_seat(draft.plan, draft.step)
        ):
            return False
        cached = self.kv.start(seq)
        held = request.parked_tokens or cached + min(
            seq.num_todo, max(1, self._room(draft, cached))
        )
        if not self.preemptor.make_room(request, held, draft.plan, draft.step):
            self.kv.free(seq)
            return False
        if request.parked_tokens:
            seq.num_computed = seq.num_scheduled = request.parked_tokens
            draft.plan.copies += self.preemptor.host.restore(request, cached)
        elif seq.num_preemptions:
            request.replay = max(0, request.replay - cached)
            seq.num_recomputed -= cached
        else:
            seq.num_cached = cached
            request.flow.charge(self.config.cached_cost * cached)
        self._seat(request, draft)
        return True

    def _seat(self, request: Request, draft: Draft) -> None:
        seq, lane = request.seq, request.flow.lane
        request.is_admitted = True
        request.admitted_step = draft.step
        request.estimate = self.admission.forecast(request)
        request.decode_price = self.config.decode_cost / request.flow.tenant.share.weight
        seq.phase = "decode" if seq.is_decode else "prefill"
        if seq.admitted_s is None:
            seq.admitted_s = draft.now
        lane.admit(request)
        self.admission.residency.acquire(request, draft.now)
        if request in lane.prefills:
            self.admission.start_computing(request)
        self.chunk(request, draft)

    def chunk(self, request: Request, draft: Draft) -> None:
        """As many of a running request's next tokens as the step and the blocks have room for."""
        if not request.is_admitted:  # preempted a moment ago, for another one of this step
            return
        seq, lane = request.seq, request.flow.lane
        start = seq.num_scheduled
        num_tokens = min(seq.num_todo, self._room(draft, start))
        if num_tokens < min(seq.num_todo, self._least_chunk):
            return
        if start + num_tokens > request.capacity and not self._make_room(
            request, num_tokens, draft
        ):
            free = self.kv.num_free * self.kv.block_size
            num_tokens = min(num_tokens, request.capacity + free - start)
            if num_tokens <= 0 or not self._make_room(request, num_tokens, draft):
                return
        take(draft.plan, seq, num_tokens)
        draft.load.add(start, num_tokens)
        if request in lane.decodes:
            request.flow.charge(self.config.decode_cost)
            request.due_s += request.tpot_s
            return
        # What is computed again was our doing, and is not billed to the tenant.
        repeated = min(num_tokens, request.replay)
        request.replay -= repeated
        request.flow.charge(self.config.prefill_cost * (num_tokens - repeated))
        if draft.plan.items[-1].samples:
            del lane.prefills[request]
            lane.decodes[request] = None
            self.admission.stop_computing(request)
            # A first token's time is known once its step is observed; the rest are due from there.
            request.due_s = request.due_s + request.tpot_s if seq.output_ids else math.inf

    def _make_room(self, request: Request, num_tokens: int, draft: Draft) -> bool:
        end = request.seq.num_scheduled + num_tokens
        return self.preemptor.make_room(request, end, draft.plan, draft.step)

    def feed_the_hungry(self, draft: Draft) -> None:
        """Where targets cannot be met, streams do not keep prompts out for ever."""
        if draft.load.attention or not any(lane.prefills or lane.backlog for lane in self.live):
            self._hungry = 0
            return
        self._hungry += 1
        if self._hungry >= HUNGRY_STEPS:
            self._hungry = 0
            self._extend(draft)
            for lane in self.live:
                self.fill(lane, draft)

    def force_progress(self, draft: Draft) -> None:
        """When nothing fits, the most urgent request goes on, at the expense of younger ones."""
        running = [*self._streams(self.lanes), *(r for lane in self.lanes for r in lane.prefills)]
        running.sort(key=lambda request: (request.flow.lane.index, request.due_s, request.number))
        for request in running:
            if request.is_admitted and not is_busy(request):
                self._extend(draft, request.seq.num_scheduled)
                self.chunk(request, draft)
            if draft.plan.items:
                # A step beyond its time holds nothing else.
                draft.budget_s = self.model.predict(draft.load)
                return

    def _extend(self, draft: Draft, start: int = 0) -> None:
        """Lengthen the step by the least chunk it must have room for, from position `start`."""
        load = replace(draft.load)
        load.add(start, self.config.min_step_tokens)
        draft.budget_s = self.model.predict(load)
