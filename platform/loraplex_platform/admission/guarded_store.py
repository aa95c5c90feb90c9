"""A shared store that may go away: while it does, each process limits by its own share."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import structlog

from loraplex_platform.admission.limits import Charge, Claim, Outcome, Reading
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.store import LimitStore, StoreUnavailable

MAX_UNSETTLED = 10_000
SETTLE_AGAIN_AT_ONCE = 100

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
        self._pause_s = pause_s
        self._failures = 0
        self._next_try = 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self._limit

    def allows(self) -> bool:
        if not self.is_open:
            return True
        if self._clock() < self._next_try:
            return False
        self._next_try = self._clock() + self._pause_s
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        self._next_try = self._clock() + self._pause_s


class GuardedStore:
    """Limits divided by workers stand in for the shared ones; strict limits have no stand-in."""

    def __init__(
        self,
        shared: LimitStore,
        workers: int,
        breaker: Breaker | None = None,
        on_change: Callable[[bool], None] = lambda is_degraded: None,
    ) -> None:
        self._shared = shared
        self._workers = workers
        self._breaker = breaker or Breaker()
        self._on_change = on_change
        self._local = MemoryStore()
        self._unsettled: deque[tuple[Claim, Mapping[str, int]]] = deque(maxlen=MAX_UNSETTLED)

    @property
    def is_degraded(self) -> bool:
        return self._breaker.is_open

    async def reserve(self, claim: Claim, ttl_s: float, *, now_ms: int | None = None) -> Outcome:
        try:
            with self._guard():
                return await self._shared.reserve(claim, ttl_s, now_ms=now_ms)
        except StoreUnavailable as error:
            if not isinstance(error, BreakerOpen):  # it may have been taken, unheard
                self._unsettled.append((claim, claim.unused()))
            if any(charge.limit.is_strict for charge in claim.charges):
                raise
        outcome = await self._local.reserve(self._share(claim), ttl_s, now_ms=now_ms)
        return Outcome(outcome.admitted, self._whole(outcome.readings), is_local=True)

    async def settle(
        self, claim: Claim, actual: Mapping[str, int], *, now_ms: int | None = None
    ) -> bool:
        """False also when the shared store is away: the claim is settled once it is back."""
        if claim.is_local:
            return await self._local.settle(self._share(claim), actual, now_ms=now_ms)
        try:
            with self._guard():
                done = await self._shared.settle(claim, actual, now_ms=now_ms)
        except StoreUnavailable:
            self._unsettled.append((claim, actual))
            return False
        await self._settle_again(now_ms)
        return done

    async def release(self, claim: Claim, unit: str, *, now_ms: int | None = None) -> None:
        """Does nothing while the shared store is away: settling ends the lease as well."""
        if claim.is_local:
            await self._local.release(self._share(claim), unit, now_ms=now_ms)
            return
        with suppress(StoreUnavailable), self._guard():
            await self._shared.release(claim, unit, now_ms=now_ms)

    async def read(
        self, tenant: str, charges: Sequence[Charge], *, now_ms: int | None = None
    ) -> tuple[Reading, ...]:
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

    async def _settle_again(self, now_ms: int | None) -> None:
        for _ in range(SETTLE_AGAIN_AT_ONCE):
            if not self._unsettled:  # asked each time: others settle meanwhile
                return
            claim, actual = self._unsettled.popleft()
            try:
                with self._guard():
                    await self._shared.settle(claim, actual, now_ms=now_ms)
            except StoreUnavailable:
                self._unsettled.append((claim, actual))
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
        return tuple(reading._replace(used=reading.used * self._workers) for reading in readings)
