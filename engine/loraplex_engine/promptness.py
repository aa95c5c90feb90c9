"""Requests that would be too late are refused at once, those that have had their time are ended."""

from collections.abc import Iterator
from heapq import heappop, heappush

from loraplex_engine.live_request import Ending
from loraplex_engine.messages import Generate

EXPIRED = Ending("error", error="timeout", message="the request's time is over")


class Deadlines:
    """Request ids by the time at which they end; ids that have ended before are no matter."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def add(self, request_id: str, due_s: float) -> None:
        heappush(self._heap, (due_s, request_id))

    def take_due(self, now: float) -> Iterator[str]:
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[1]


def too_late(request: Generate, expected_s: float | None, max_queue_s: float) -> Ending | None:
    """The refusal of a live request that would not start in time; batch work may wait."""
    patience_s = min(max_queue_s, request.remaining_s or max_queue_s)
    if request.tier == "batch" or expected_s is None or expected_s <= patience_s:
        return None
    return Ending(
        "error",
        error="overloaded",
        message=f"the queue takes {expected_s:.0f} s, the request can wait {patience_s:.0f} s",
        retry_after_s=max(1.0, expected_s - patience_s),
    )
