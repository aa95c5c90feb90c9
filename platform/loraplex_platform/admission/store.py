"""Where the limiter's state lives: this process, or a Redis that all API processes share."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from loraplex_platform.admission.limits import Charge, Claim, Outcome, Reading
from loraplex_platform.admission.owed import Ending


class StoreUnavailable(Exception):
    """The store did not answer in time, or refused."""


class LimitStore(Protocol):
    """Each call is one atomic step, in the store's own time unless a test passes `now_ms`."""

    @property
    def is_degraded(self) -> bool:
        """Whether this process decides alone, because the shared store is away."""
        ...

    async def reserve(self, claim: Claim, ttl_s: float, *, now_ms: int | None = None) -> Outcome:
        """Check all charges, then take all or none.

        An id that is already reserved is admitted again and charged once. What is not settled
        within `ttl_s` comes back by itself.
        """
        ...

    async def settle(
        self, claim: Claim, actual: Mapping[str, int], *, now_ms: int | None = None
    ) -> bool:
        """Put what was used in the place of what was reserved, and end the leases.

        `actual` is by unit; a unit that is not in it was used as reserved. False: there was
        nothing to settle (settled before, or unknown for more than twice its time to live), or
        it is not known yet.
        """
        ...

    async def release(self, claim: Claim, unit: str, *, now_ms: int | None = None) -> None:
        """End a claim's leases on this unit before the claim is settled; idempotent."""
        ...

    async def read(
        self, tenant: str, charges: Sequence[Charge], *, now_ms: int | None = None
    ) -> tuple[Reading, ...]:
        """How full these limits are, and how long each charge would wait; takes nothing."""
        ...

    async def seed(self, tenant: str, charge: Charge, *, now_ms: int | None = None) -> None:
        """Tell a store that knows nothing of the present day or month what was used in it."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class SharedStore(LimitStore, Protocol):
    """A store that takes what has ended together with what begins."""

    async def reserve(
        self,
        claim: Claim,
        ttl_s: float,
        *,
        after: Sequence[Ending] = (),
        now_ms: int | None = None,
    ) -> Outcome:
        """First the endings, of the same tenant, then the claim: one step."""
        ...

    async def end(self, endings: Sequence[Ending], *, now_ms: int | None = None) -> None:
        """All of them, of one tenant, in one step."""
        ...
