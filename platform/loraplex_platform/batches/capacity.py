"""How many more lines the engine can take without live requests noticing."""

import math

from loraplex_engine.client import EngineClient
from loraplex_engine.messages import EngineStats
from loraplex_platform.kit.clock import Clock

STALE_S = 2.0
MAX_WAITING = 8  # lines that wait in the engine, so that it never runs dry between two readings
LEAST_URGENT = 2  # lines of a job that would miss its window, however little is spare
WAITING = ("waiting", "loading", "parked")


class Capacity:
    """Follows the engine's statistics; an old reading means that nothing is spare."""

    def __init__(self, engine: EngineClient, clock: Clock, limit: int) -> None:
        self._engine = engine
        self._clock = clock
        self._limit = limit
        self._reading: tuple[str, int] | None = None
        self._read_s = -math.inf

    def room(self, running: int, *, is_urgent: bool = False) -> int:
        """Lines to start now beside those that this process runs."""
        stats = self._fresh()
        if stats is None or stats.draining:
            return 0
        target = math.ceil(self._limit * stats.spare)
        waiting = sum(s.tier == "batch" and s.phase in WAITING for s in stats.sequences)
        room = min(target - running, MAX_WAITING - waiting)
        return max(0, room, LEAST_URGENT - running if is_urgent else 0)

    def _fresh(self) -> EngineStats | None:
        stats, now_s = self._engine.stats, self._clock.monotonic()
        if stats is None:
            return None
        reading = (stats.engine_id, stats.sequence_number)
        if reading != self._reading:
            self._reading, self._read_s = reading, now_s
        return stats if now_s - self._read_s <= STALE_S else None
