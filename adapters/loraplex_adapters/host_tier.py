"""Versions kept in host memory, so that a slot that was lost is regained without the disk."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.worth import Holding, least_worth


@dataclass(slots=True)
class _Kept:
    weights: AdapterWeights
    tenant: str | None
    reload_s: float
    used_s: float


class HostTier:
    """A budget of bytes; what is worth least leaves first."""

    def __init__(self, budget_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget_bytes = budget_bytes
        self.num_bytes = 0
        self.evictions = 0
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def __contains__(self, version: str) -> bool:
        return version in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def held(self) -> tuple[int, int, int, int]:
        """Evictions, bytes, the budget of them, versions."""
        return self.evictions, self.num_bytes, self.budget_bytes, len(self)

    def get(self, version: str) -> AdapterWeights | None:
        """A version's weights, now the most recently used."""
        kept = self._kept.get(version)
        if kept is None:
            return None
        kept.used_s = self._clock()
        return kept.weights

    def put(
        self,
        version: str,
        weights: AdapterWeights,
        tenant: str | None = None,
        reload_s: float = 1.0,
    ) -> None:
        """Keep a version, unless it alone exceeds the budget."""
        self.remove(version)
        if weights.num_bytes > self.budget_bytes:
            return
        while self.num_bytes + weights.num_bytes > self.budget_bytes:
            victim = least_worth(self._holdings(), self.budget_bytes, self._clock())
            assert victim is not None, "an empty tier is within its budget"
            self.remove(victim)
            self.evictions += 1
        self._kept[version] = _Kept(weights, tenant, reload_s, self._clock())
        self.num_bytes += weights.num_bytes

    def remove(self, version: str) -> None:
        kept = self._kept.pop(version, None)
        if kept is not None:
            self.num_bytes -= kept.weights.num_bytes

    def _holdings(self) -> list[Holding]:
        return [
            Holding(
                version,
                kept.tenant,
                kept.weights.num_bytes,
                kept.weights.num_bytes,
                kept.reload_s,
                kept.used_s,
            )
            for version, kept in self._kept.items()
        ]
