"""Whether live tiers get what they are promised: attainment of TTFT and TPOT, and goodput."""

from collections.abc import Mapping
from dataclasses import replace

from loraplex_engine.live_request import Ending
from loraplex_engine.messages import PromiseStats, Tier
from loraplex_engine.scheduling.config import TierTarget
from loraplex_engine.sequence import Sequence

TOO_LATE = ("overloaded", "timeout")


class Promises:
    """Totals since the start. Whoever hung up, or sent what cannot be served, is not counted."""

    def __init__(self, targets: Mapping[Tier, TierTarget]) -> None:
        self._targets = {tier: target for tier, target in targets.items() if target.is_promise}
        self._seen = {tier: PromiseStats(tier) for tier in self._targets}

    @property
    def stats(self) -> tuple[PromiseStats, ...]:
        return tuple(self._seen.values())

    def note(self, seq: Sequence, ending: Ending, now: float) -> None:
        """A sequence ended, with its last token if it has any."""
        target = self._targets.get(seq.tier)
        is_late = ending.error in TOO_LATE
        if target is None or not (ending.reason in ("stop", "length") or is_late):
            return
        seen, first_s, later = self._seen[seq.tier], seq.first_token_s, len(seq.output_ids) - 1
        in_time = first_s is not None and first_s - seq.arrival_s <= target.ttft_s
        at_pace = first_s is not None and (later == 0 or now - first_s <= later * target.tpot_s)
        is_kept = in_time and at_pace and not is_late
        self._seen[seq.tier] = replace(
            seen,
            requests=seen.requests + 1,
            ttft_kept=seen.ttft_kept + in_time,
            tpot_kept=seen.tpot_kept + at_pace,
            kept=seen.kept + is_kept,
            good_tokens=seen.good_tokens + is_kept * len(seq.output_ids),
        )
