"""Whose turn it is to start, and what stands in the way."""

from loraplex_engine.messages import WaitReason
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.flows import Flow, Lane, Request
from loraplex_engine.scheduling.forecast import LengthModel, peak_tokens
from loraplex_engine.scheduling.policy import KvCache, StepPlan
from loraplex_engine.scheduling.preemption import Preemptor
from loraplex_engine.scheduling.residency import Residency

HINT_STEPS = 16  # a cached prefix is looked up again after so many steps

# adapter absent, order of magnitude of its cached prefix (negative), counter, number
Rank = tuple[bool, int, float, int, Request]


class Admission:
    """Picks the next waiting request of a lane: fair order, bent within the locality window."""

    def __init__(
        self,
        kv: KvCache,
        residency: Residency,
        preemptor: Preemptor,
        lanes: list[Lane],
        config: SchedulerConfig,
    ) -> None:
        self.kv = kv
        self.residency = residency
        self.preemptor = preemptor
        self.lanes = lanes
        self.config = config
        self.lengths = LengthModel()
        self.has_caps = False
        self._ranks: dict[Flow, tuple[int, Request, Rank]] = {}  # step, head of the flow, its rank
        self._producers: dict[bytes, Request] = {}  # who is computing a block that others may want

    def pick(self, lane: Lane, plan: StepPlan, now: float, step: int) -> Request | None:
        """The request of this lane that starts next; None if nobody can in this step."""
        flows = list(lane.backlog)
        if self.has_caps:
            flows = self._uncapped(flows)
        if not flows:
            return None
        edge = self._edge(lane, flows)
        for request in self._overdue(lane, edge, now):
            reason = self._why_not(request, plan, now)
            if reason is None:
                return request
            if reason == "slot":
                self.residency.drain_for(request)
            elif reason == "kv":
                return None  # what becomes free is kept for it
        window = [f for f in flows if f.counter <= edge and f.blocked_step != step]
        ranked = [self._rank_of(flow, now, step) for flow in window]
        while ranked:
            best = min(ranked)
            request = best[-1]
            reason = self._why_not(request, plan, now)
            if reason is None:
                self._note_passed(request, ranked, plan, now)
                return request
            lane.deny(request, reason, now)
            request.flow.blocked_step = step
            ranked.remove(best)
        return None

    def _edge(self, lane: Lane, flows: list[Flow]) -> float:
        """The counter up to which a flow may come before those that had less."""
        # Those who cannot start count for the minimum: else they would be passed without limit.
        lowest = min([flow.counter for flow in flows])
        lane.virtual = max(lane.virtual, lowest)
        heaviest = max([flow.tenant.share.weight for flow in flows])
        return lowest + self.config.locality_window / heaviest

    def _note_passed(self, chosen: Request, ranked: list[Rank], plan: StepPlan, now: float) -> None:
        """Those who come first in fair order but lack an adapter: it is fetched, and time is kept."""
        place = (chosen.flow.counter, chosen.number)
        for is_absent, _, counter, number, request in ranked:
            if is_absent and (counter, number) < place:
                reason = self.residency.why_not(request, plan)
                if reason == "slot" and request.is_live:
                    self.residency.lend_to(request, now)
                request.flow.lane.deny(request, reason or "slot", now)

    def start_computing(self, request: Request) -> None:
        """Let others of the same scope know which blocks they may wait for."""
        first = request.seq.num_computed // self.kv.block_size
        for key in request.seq.block_hashes[first:]:
            self._producers.setdefault(key, request)

    def stop_computing(self, request: Request) -> None:
        """Its prompt is computed, or it gave up. Idempotent."""
        for key in request.seq.block_hashes:
            if self._producers.get(key) is request:
                del self._producers[key]

    def forecast(self, request: Request) -> int:
        """All output tokens the request is expected to have at its end."""
        seq = request.seq
        generated = len(seq.output_ids)
        expected = self.lengths.quantile(
            self.config.output_quantile, seq.tenant, seq.adapter, seq.tier, generated
        )
        return min(expected, seq.sampling.max_tokens)

    def has_memory(self, request: Request) -> bool:
        """Whether the blocks suffice when the running requests and this one peak together."""
        if request.estimate == 0:
            request.estimate = self.forecast(request)
        batch = self.lanes[-1]
        # Live work sees the blocks of batch work as free: it can have them at any time.
        lanes = [lane for lane in self.lanes if lane.is_live or request.flow.lane is batch]
        share = 1 - self.config.watermark * (1 if request.is_live else 2)
        if request.flow.lane.tier == "standard":
            share -= self.config.headroom
        limit = int(self.kv.num_blocks * self.kv.block_size * share)
        num_running = sum(lane.num_running for lane in lanes)
        slack = (num_running + 1) * self.kv.block_size  # blocks are not shared out by the token
        total = sum(lane.footprint for lane in lanes) + request.footprint + slack
        if total <= limit or num_running == 0:
            return True
        version = sum(lane.version for lane in lanes)
        if request.refused_at == version:
            return False  # as long as nobody ends, the forecast is what it was
        rows = [_row(other) for lane in lanes for other in (*lane.decodes, *lane.prefills)]
        if peak_tokens([*rows, _row(request)]) + slack <= limit:
            return True
        request.refused_at = version
        return False

    def _uncapped(self, flows: list[Flow]) -> list[Flow]:
        free = []
        for flow in flows:
            if flow.is_capped(self.kv.num_blocks):
                flow.waiting[0].reason = "quota"
            else:
                free.append(flow)
        return free

    def _overdue(self, lane: Lane, edge: float, now: float) -> list[Request]:
        """Requests that others passed for too long while it was their turn, oldest first."""
        overdue = []
        for request in lane.denied:
            passed = lane.num_admissions - request.denied_at
            waited = now - (request.denied_s or 0.0)
            is_impatient = waited > lane.target.patience_s or passed > self.config.max_bypasses
            if passed and is_impatient and request.flow.counter <= edge:
                overdue.append(request)
        return sorted(overdue, key=lambda request: request.number)

    def _candidate(self, flow: Flow, now: float) -> Request:
        """The flow's most urgent request; or one close behind it whose adapter is resident."""
        head = flow.waiting[0]
        while now > head.due_s and not head.is_late and not head.seq.output_ids:
            # What cannot be kept any more makes way, once, for what still can.
            head.is_late = True
            flow.waiting.remove(head)
            urgent_s, number = head.urgency
            head.urgency = (urgent_s + self.config.late_penalty * flow.lane.target.ttft_s, number)
            flow.insert(head)
            head = flow.waiting[0]
        if self.residency.is_resident(head):
            return head
        for request in flow.waiting[1 : self.config.lookahead]:
            if self.residency.is_resident(request):
                flow.lane.deny(head, "slot", now)
                return request
        return head

    def _rank_of(self, flow: Flow, now: float, step: int) -> Rank:
        """The rank of a flow's candidate; looked up once a step unless the flow has changed."""
        known = self._ranks.get(flow)
        if known is not None:
            at, head, rank = known
            is_same = at == step and flow.waiting[0] is head and not rank[-1].is_admitted
            if is_same and rank[2] == flow.counter:
                return rank
        rank = self._rank(self._candidate(flow, now), step)
        self._ranks[flow] = (step, flow.waiting[0], rank)
        return rank

    def _rank(self, request: Request, step: int) -> Rank:
        is_absent = not self.residency.is_resident(request)
        hint = self._cached_bucket(request, step)
        return (is_absent, -hint, request.flow.counter, request.number, request)

    def _cached_bucket(self, request: Request, step: int) -> int:
        """Order of magnitude of the prefix it would find cached, looked up now and then."""
        looked, bucket = request.prefix_hint
        if looked == 0 or step - looked >= HINT_STEPS:
            bucket = self.kv.match_prefix(request.seq).bit_length()
            request.prefix_hint = (step, bucket)
        return bucket

    def _why_not(self, request: Request, plan: StepPlan, now: float) -> WaitReason | None:
        if self._waits_for_prefix(request, now):
            return "prefix"
        if not self.has_memory(request):
            return "kv"
        reason = self.residency.why_not(request, plan)
        if reason == "slot" and request.is_live and self.preemptor.free_slot(plan):
            reason = self.residency.why_not(request, plan)
        if reason == "slot" and request.is_live:
            self.residency.lend_to(request, now)
        return reason

    def _waits_for_prefix(self, request: Request, now: float) -> bool:
        """Whether a running request computes what this one would begin with, and gets on with it."""
        if not self._producers:
            return False
        key = self.kv.next_block_key(request.seq)
        producer = self._producers.get(key) if key is not None else None
        if producer is None or producer is request:
            return False
        if request.prefix_since_s is None or key != request.prefix_key:
            request.prefix_since_s, request.prefix_key = now, key
        return now - request.prefix_since_s <= self.config.prefix_wait_s


def _row(request: Request) -> tuple[int, int]:
    seq = request.seq
    generated = len(seq.output_ids)
    left = request.estimate - generated
    return left if left > 0 else 1, len(seq.prompt_ids) + generated
