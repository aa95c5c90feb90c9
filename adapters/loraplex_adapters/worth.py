"""Which version leaves a tier first.

A version is worth the loading it saves: `reload_s / (num_bytes * idle_s)`, the seconds that its return
would cost for each byte it holds and each second it has not been used. The least worth leaves, and a
tenant that holds more than its share of the tier (capacity / tenants present) loses its own first.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

LEAST_S = 1e-6  # a use or a load cannot be told from another within it


class Holding(NamedTuple):
    """A version in a tier, as far as its worth goes."""

    version: str
    tenant: str | None
    size: float  # in the unit of the tier's capacity
    num_bytes: int
    reload_s: float  # how long it takes to bring it back
    used_s: float  # when it was last used
    is_evictable: bool = True


def worth(holding: Holding, now_s: float) -> float:
    idle_s = max(now_s - holding.used_s, LEAST_S)
    return max(holding.reload_s, LEAST_S) / (max(holding.num_bytes, 1) * idle_s)


def least_worth(holdings: Iterable[Holding], capacity: float, now_s: float) -> str | None:
    """The version to evict; None if none may leave. Of equals the first."""
    holdings = list(holdings)
    held: defaultdict[str | None, float] = defaultdict(float)
    for holding in holdings:
        held[holding.tenant] += holding.size
    share = capacity / max(len(held), 1)
    idle = [holding for holding in holdings if holding.is_evictable]
    over = [holding for holding in idle if held[holding.tenant] > share]
    victim = min(over or idle, key=lambda holding: worth(holding, now_s), default=None)
    return None if victim is None else victim.version
