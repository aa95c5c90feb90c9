"""What the tiers count: totals since the start, and what is held now."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier. A hit found a version there; a load brought it there from the tier below."""

    tier: str  # "device", "host" or "disk"
    hits: int = 0
    loads: int = 0
    load_s: float = 0.0  # of all loads together
    failures: int = 0
    evictions: int = 0
    num_bytes: int = 0
    budget_bytes: int = 0  # 0: none of this engine's
    versions: int = 0


@dataclass(slots=True)
class TierCount:
    """The totals of a tier, as they grow."""

    hits: int = 0
    loads: int = 0
    load_s: float = 0.0
    failures: int = 0

    def count_load(self, seconds: float) -> None:
        self.loads += 1
        self.load_s += seconds

    def stats(
        self, tier: str, evictions: int, num_bytes: int, budget_bytes: int, versions: int
    ) -> TierStats:
        held = (evictions, num_bytes, budget_bytes, versions)
        return TierStats(tier, self.hits, self.loads, self.load_s, self.failures, *held)
