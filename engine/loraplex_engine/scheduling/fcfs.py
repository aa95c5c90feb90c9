"""First come, first served, with chunked prefill: the baseline, and what a single tenant needs."""

from collections import deque

from loraplex_engine.messages import TenantShare, WaitReason
from loraplex_engine.scheduling.policy import (
    AdapterSlots,
    Explanation,
    KvCache,
    PolicyStats,
    Preemption,
    StepPlan,
    take,
)
from loraplex_engine.sequence import Sequence


class Fcfs:
    """Running sequences first, oldest first; then waiting ones in order of arrival.

    A waiting head whose adapter is still loading lets others pass; one that lacks blocks does not.
    """

    def __init__(
        self, kv: KvCache, slots: AdapterSlots, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self.kv = kv
        self.slots = slots
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._in_flight: dict[Sequence, int] = {}  # plans not yet observed that compute it

    @property
    def running(self) -> list[Sequence]:
        return list(self._running)

    @property
    def waiting(self) -> list[Sequence]:
        return list(self._waiting)

    @property
    def stats(self) -> PolicyStats:
        """It bypasses and drains nobody, and promises nothing."""
        return PolicyStats()

    def add(self, seq: Sequence, now: float) -> None:
        self._waiting.append(seq)

    def set_share(self, share: TenantShare) -> None:
        """Shares do not matter to the order of arrival."""

    def finish(self, seq: Sequence, now: float, *, is_cut: bool = False) -> None:
        seq.is_finished = True
        if seq in self._waiting:
            self._waiting.remove(seq)
        elif seq in self._running:
            self._running.remove(seq)
            if seq not in self._in_flight:  # else a step still reads its blocks and its slot
                self._let_go(seq)

    def schedule(self, now: float) -> StepPlan:
        plan = StepPlan()
        for seq in list(self._running):
            room = self.max_num_batched_tokens - plan.num_tokens
            if room > 0 and seq.phase != "waiting" and seq.num_todo > 0:
                self._continue(plan, seq, min(seq.num_todo, room))
        if not plan.preemptions:
            self._admit(plan, now)
        for item in plan.items:
            self._in_flight[item.seq] = self._in_flight.get(item.seq, 0) + 1
        return plan

    def observe(self, plan: StepPlan, seconds: float, now: float) -> None:
        for item in plan.items:
            seq = item.seq
            self._in_flight[seq] -= 1
            if self._in_flight[seq] == 0:
                del self._in_flight[seq]
                if seq.is_finished:
                    self.kv.commit(seq)
                    self._let_go(seq)
                    continue
            self.kv.commit(seq)
            if seq.phase == "prefill" and seq.output_ids:
                seq.phase = "decode"

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """The order of arrival needs no forecast."""

    def reason(self, seq: Sequence) -> WaitReason | None:
        if seq in self._running:
            return None
        if seq.adapter is not None and self.slots.state(seq.adapter) != "resident":
            is_loading = self.slots.state(seq.adapter) == "loading"
            return "loading" if is_loading or self.slots.can_load(seq.adapter) else "slot"
        return "kv"

    def explain(self, seq: Sequence, now: float) -> Explanation:
        if seq not in self._waiting:
            return Explanation(None, 0, None)
        return Explanation(self.reason(seq), self._waiting.index(seq), None)

    def _continue(self, plan: StepPlan, seq: Sequence, num_tokens: int) -> None:
        """Give a running sequence its tokens, at the expense of the youngest if blocks run out."""
        while not self.kv.extend(seq, seq.num_scheduled + num_tokens):
            victim = self._youngest_idle(plan)
            if victim is None:
                return
            self._preempt(plan, victim)
            if victim is seq:
                return
        take(plan, seq, num_tokens)

    def _youngest_idle(self, plan: StepPlan) -> Sequence | None:
        """The youngest running sequence that no step in flight, nor this plan, computes."""
        busy = {item.seq for item in plan.items}
        for seq in reversed(self._running):
            if seq not in busy and seq not in self._in_flight:
                return seq
        return None

    def _preempt(self, plan: StepPlan, seq: Sequence) -> None:
        seq.num_recomputed += seq.num_computed
        seq.num_preemptions += 1
        self._running.remove(seq)
        self._let_go(seq)
        seq.phase = "waiting"
        self._waiting.appendleft(seq)
        plan.preemptions.append(Preemption(seq, "recompute"))

    def _let_go(self, seq: Sequence) -> None:
        self.kv.free(seq)
        if seq.adapter is not None:
            self.slots.release(seq.adapter)

    def _admit(self, plan: StepPlan, now: float) -> None:
        for seq in list(self._waiting):
            room = self.max_num_batched_tokens - plan.num_tokens
            if room <= 0 or len(self._running) >= self.max_num_seqs:
                return
            if seq.adapter is not None and self.slots.state(seq.adapter) != "resident":
                self._ask_for(plan, seq, seq.adapter)
                continue
            if not self._start(seq, room):
                return
            self._waiting.remove(seq)
            self._running.append(seq)
            if seq.adapter is not None:
                self.slots.acquire(seq.adapter)
            seq.phase = "prefill"
            if seq.admitted_s is None:
                seq.admitted_s = now
            take(plan, seq, min(seq.num_todo, room))

    def _ask_for(self, plan: StepPlan, seq: Sequence, adapter: str) -> None:
        if self.slots.state(adapter) == "absent" and self.slots.can_load(adapter):
            plan.loads.append(adapter)
        seq.phase = "loading" if self.slots.state(adapter) == "loading" else "waiting"

    def _start(self, seq: Sequence, room: int) -> bool:
        """Take the cached prefix and blocks for everything known, or nothing."""
        cached = self.kv.start(seq)
        if not self.kv.extend(seq, seq.num_known):
            self.kv.free(seq)
            return False
        if seq.num_preemptions == 0:
            seq.num_cached = cached
        else:
            seq.num_recomputed -= cached
        return True
