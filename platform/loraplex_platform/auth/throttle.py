"""How often one address may be wrong."""

import math

from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import RateLimited


class Throttle:
    """Counts failures by address: after `burst` of them, one more every `every_s` seconds.

    Bounded in memory: who failed longest ago is forgotten first.
    """

    def __init__(
        self, clock: Clock, *, burst: int = 20, every_s: float = 3.0, max_size: int = 10_000
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._every_s = every_s
        self._max_size = max_size
        self._free_at: dict[str, float] = {}  # when all of an address's failures are forgiven

    def check(self, address: str | None) -> None:
        """Raises RateLimited while the address has failed too often."""
        wait_s = self._debt(address or "") - (self._burst - 1) * self._every_s
        if wait_s > 0:
            raise RateLimited(
                "Too many wrong keys from your address.",
                retry_after_s=float(math.ceil(wait_s)),
                code="too_many_failures",
            )

    def failed(self, address: str | None) -> None:
        key = address or ""
        debt = self._debt(key) + self._every_s
        self._free_at.pop(key, None)
        while len(self._free_at) >= self._max_size:
            del self._free_at[next(iter(self._free_at))]
        self._free_at[key] = self._clock.monotonic() + debt

    def _debt(self, key: str) -> float:
        return max(0.0, self._free_at.get(key, 0.0) - self._clock.monotonic())
