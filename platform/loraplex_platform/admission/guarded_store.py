"""A shared store that may go away, and is told what has ended together with what begins.

Endings ride with their tenant's next request, in the same step before it; where none comes, they
are told a moment later. So a request costs one round trip, and sees all that ended here before it.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog

from loraplex_platform.admission.limits import Charge, Claim, Outcome, Reading
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.owed import Ending, Owed
from loraplex_platform.admission.store import SharedStore, StoreUnavailable
from loraplex_platform.kit.tasks import Tasks

FLUSH_AFTER_S = 0.05
RIDERS = 16  # endings that a request takes along: each makes it some 30 µs longer
TOLD_AT_ONCE = 100  # otherwise

log = structlog.get_logger(__name__)


class BreakerOpen(StoreUnavailable):
    """The shared store was not asked: it did not answer a moment ago."""


class Breaker:
    """Opens after some failures in a row; then lets one caller try every `pause_s`."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, failures: int = 3, pause_s: float = 1.0
    ) -> None:
        self._clock = clock
        self._limit = failures
        self.pause_s = pause_s
        self._failures = 0
        self._next_try = 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self._limit

    @property
    def is_ready(self) -> bool:
        """Whether the next caller may try."""
        return not self.is_open or self._clock() >= self._next_try

    def allows(self) -> bool:
        if not self.is_open:
            return True
        if not self.is_ready:
            return False
        self._next_try = self._clock() + self.pause_s
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        self._next_try = self._clock() + self.pause_s


class GuardedStore:
    """Limits divided by workers stand in for the shared ones; strict limits have no stand-in."""

    def __init__(
        self,
        shared: SharedStore,
        workers: int,
        breaker: Breaker | None = None,
        on_change: Callable[[bool], None] = lambda is_degraded: None,
        flush_after_s: float = FLUSH_AFTER_S,
    ) -> None:
        self._shared = shared
        self._workers = workers
        self._breaker = breaker or Breaker()
        self._on_change = on_change
        self._look_every_s = flush_after_s / 2
        self._local = MemoryStore()
        self._owed = Owed()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._tasks = Tasks()

    @property
    def is_degraded(self) -> bool:
        return self._breaker.is_open

    async def reserve(self, claim: Claim, ttl_s: float, *, now_ms: int | None = None) -> Outcome:
        """Takes along what its tenant's requests left to be told."""
        riders = self._owed.take(claim.tenant, RIDERS) if self._breaker.is_ready else []
        try:
            with self._guard():
                return await self._shared.reserve(claim, ttl_s, after=riders, now_ms=now_ms)
        except StoreUnavailable as error:
            self._owe(*riders)
            if not isinstance(error, BreakerOpen):  # it may have been taken, unheard
                self._owe(Ending(claim, claim.unused()))
            if any(charge.limit.is_strict for charge in claim.charges):
                raise
        outcome = await self._local.reserve(self._share(claim), ttl_s, now_ms=now_ms)
        return Outcome(outcome.admitted, self._whole(outcome.readings), is_local=True)

    async def settle(
        self, claim: Claim, actual: Mapping[str, int], *, now_ms: int | None = None
    ) -> bool:
        """Told later, and then False; but at once where others may wait for its leases."""
        if claim.is_local:
            return await self._local.settle(self._share(claim), actual, now_ms=now_ms)
        self._owe(Ending(claim, actual))
        if claim.has_tight_leases():
            await self._tell_of(claim.tenant, now_ms)
        return False

    async def release(self, claim: Claim, unit: str, *, now_ms: int | None = None) -> None:
        """The same; settling ends the leases as well."""
        if claim.is_local:
            await self._local.release(self._share(claim), unit, now_ms=now_ms)
            return
        self._owe(Ending(claim.leases(unit), {}, is_final=False))
        if claim.has_tight_leases():
            await self._tell_of(claim.tenant, now_ms)

    async def flush(self, *, now_ms: int | None = None) -> None:
        """Tell everything that ended; what the shared store does not hear is told later."""
        await self._tell_of_all(self._owed.tenants, now_ms)

    async def look(self) -> None:
        """Tell what no request has taken along since the last look; all, after an outage."""
        left_over = self._owed.left_over()
        await self._tell_of_all(self._owed.tenants if self.is_degraded else left_over)

    async def read(
        self, tenant: str, charges: Sequence[Charge], *, now_ms: int | None = None
    ) -> tuple[Reading, ...]:
        await self._tell_of(tenant, now_ms)
        try:
            with self._guard():
                return await self._shared.read(tenant, charges, now_ms=now_ms)
        except StoreUnavailable:
            shares = [self._share_of(charge) for charge in charges]
            return self._whole(await self._local.read(tenant, shares, now_ms=now_ms))

    async def seed(self, tenant: str, charge: Charge, *, now_ms: int | None = None) -> None:
        try:
            with self._guard():
                await self._shared.seed(tenant, charge, now_ms=now_ms)
        except StoreUnavailable:
            share = self._share_of(charge)._replace(amount=charge.amount // self._workers)
            await self._local.seed(tenant, share, now_ms=now_ms)

    async def close(self) -> None:
        """Tells what it owes first; what cannot be told expires by itself."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.drain()
        await self.flush()
        await self._shared.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Asks the breaker before a call of the shared store, and tells it how the call went."""
        if not self._breaker.allows():
            raise BreakerOpen
        try:
            yield
        except StoreUnavailable:
            self._tell(self._breaker.failed)
            raise
        self._tell(self._breaker.succeeded)

    def _tell(self, news: Callable[[], None]) -> None:
        was_open = self._breaker.is_open
        news()
        if self._breaker.is_open != was_open:
            log.warning("limiter_recovered" if was_open else "limiter_degraded")
            self._on_change(not was_open)

    def _owe(self, *endings: Ending) -> None:
        for ending in endings:
            self._owed.add(ending)
        if endings and self._timer is None:
            self._look_in(self._look_every_s)

    def _look_in(self, seconds: float) -> None:
        if self._is_closing:
            return
        self._timer = asyncio.get_running_loop().call_later(
            seconds, lambda: self._tasks.spawn(self._look_now())
        )

    async def _look_now(self) -> None:
        try:
            await self.look()
        finally:
            self._timer = None
            if self._owed:
                self._look_in(self._breaker.pause_s if self.is_degraded else self._look_every_s)

    async def _tell_of_all(self, tenants: Iterable[str], now_ms: int | None = None) -> None:
        for tenant in tenants:
            if not self._breaker.is_ready:
                return
            await self._tell_of(tenant, now_ms)

    async def _tell_of(self, tenant: str, now_ms: int | None) -> None:
        while endings := self._owed.take(tenant, TOLD_AT_ONCE):
            try:
                with self._guard():
                    await self._shared.end(endings, now_ms=now_ms)
            except StoreUnavailable:
                self._owe(*endings)
                return

    def _share(self, claim: Claim) -> Claim:
        charges = tuple(self._share_of(charge) for charge in claim.charges)
        return dataclasses.replace(claim, charges=charges)

    def _share_of(self, charge: Charge) -> Charge:
        """At least 1, and what fits the whole limit fits the share when it is empty."""
        limit, amount = charge
        value = max(limit.value // self._workers, min(limit.value, 1))
        cut = min(amount, value) if amount <= limit.value else amount
        return Charge(dataclasses.replace(limit, value=value), cut)

    def _whole(self, readings: Sequence[Reading]) -> tuple[Reading, ...]:
        return tuple(
            reading._replace(used=reading.used * self._workers, held=reading.held * self._workers)
            for reading in readings
        )
