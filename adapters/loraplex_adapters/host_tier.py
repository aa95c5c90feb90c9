"""Versions kept in host memory, so that a slot that was lost is regained without the disk."""

from collections import OrderedDict

from loraplex_adapters.loader import AdapterWeights


class HostTier:
    """A budget of bytes; the least recently used version leaves first."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.num_bytes = 0
        self._weights: OrderedDict[str, AdapterWeights] = OrderedDict()

    def __contains__(self, version: str) -> bool:
        return version in self._weights

    def __len__(self) -> int:
        return len(self._weights)

    def get(self, version: str) -> AdapterWeights | None:
        """A version's weights, now the most recently used."""
        if version in self._weights:
            self._weights.move_to_end(version)
        return self._weights.get(version)

    def put(self, version: str, weights: AdapterWeights) -> None:
        """Keep a version, unless it alone exceeds the budget."""
        self.remove(version)
        if weights.num_bytes > self.budget_bytes:
            return
        self._weights[version] = weights
        self.num_bytes += weights.num_bytes
        while self.num_bytes > self.budget_bytes:
            self.remove(next(iter(self._weights)))

    def remove(self, version: str) -> None:
        weights = self._weights.pop(version, None)
        if weights is not None:
            self.num_bytes -= weights.num_bytes
