"""A batch runs to its end before the next one starts: the textbook baseline."""

from loraplex_engine.scheduling.fcfs import Fcfs
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_engine.sequence import Sequence


class Static(Fcfs):
    """Admits while nobody has sampled yet, with blocks for the longest output there can be."""

    def _admit(self, plan: StepPlan, now: float) -> None:
        if not any(seq.output_ids or seq.num_pending for seq in self._running):
            super()._admit(plan, now)

    def _start(self, seq: Sequence, room: int) -> bool:
        cached = self.kv.start(seq)
        if not self.kv.extend(seq, seq.max_num_tokens):
            self.kv.free(seq)
            return False
        seq.num_cached = cached
        return True
