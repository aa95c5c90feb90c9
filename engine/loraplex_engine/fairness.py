"""How evenly tenants that wait are served, for their weights: Jain's index over a window."""

from collections.abc import Callable, Iterable

from loraplex_engine.sequence import Sequence

WINDOW_S = 60.0


class Fairness:
    """Counts the tenants that waited at each look of a window: those who want more than they get."""

    def __init__(self, service_of: Callable[[str], int]) -> None:
        self.weights: dict[str, float] = {}
        self._service_of = service_of
        self._began_s = 0.0
        self._at_start: dict[str, int] = {}  # service of those who have waited ever since
        self._last = 1.0

    def jain(self, now: float, waiting: Iterable[Sequence]) -> float:
        """1 is equal, 1/n is all for one of n; of the last whole window."""
        tenants = {seq.tenant for seq in waiting if seq.tier != "batch"}
        if now - self._began_s >= WINDOW_S:
            self._last = self._index()
            self._began_s = now
            self._at_start = {tenant: self._service_of(tenant) for tenant in tenants}
        self._at_start = {t: s for t, s in self._at_start.items() if t in tenants}
        return self._last

    def _index(self) -> float:
        served = [
            (self._service_of(tenant) - before) / self.weights.get(tenant, 1.0)
            for tenant, before in self._at_start.items()
        ]
        squares = sum(x * x for x in served)
        return sum(served) ** 2 / (len(served) * squares) if squares else 1.0
