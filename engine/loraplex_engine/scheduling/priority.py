"""Strict priority by tier, then arrival, as vLLM has it: the baseline without fairness or deadlines."""

from bisect import insort

from loraplex_engine.messages import TIERS
from loraplex_engine.scheduling.fcfs import Fcfs
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_engine.sequence import Sequence


class Priority(Fcfs):
    """Waiting ones start by (tier, arrival); a block that is missing is taken from the last of them."""

    def add(self, seq: Sequence, now: float) -> None:
        waiting = list(self._waiting)
        insort(waiting, seq, key=_rank)
        self._waiting.clear()
        self._waiting.extend(waiting)

    def _preempt(self, plan: StepPlan, seq: Sequence) -> None:
        super()._preempt(plan, seq)
        self._waiting.remove(seq)
        self.add(seq, seq.arrival_s)

    def _youngest_idle(self, plan: StepPlan) -> Sequence | None:
        busy = {item.seq for item in plan.items} | set(self._in_flight)
        idle = [seq for seq in self._running if seq not in busy]
        return max(idle, key=_rank, default=None)


def _rank(seq: Sequence) -> tuple[int, float]:
    return TIERS.index(seq.tier), seq.arrival_s
