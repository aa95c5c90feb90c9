"""Any interleaving of reserve, settle, expiry and crash: 0 <= used <= limit, and back to the truth."""

import asyncio
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.platform.limit_stores import (
    NOON_MS,
    TENANT,
    claim,
    concurrent,
    daily,
    monthly,
    requests,
    tokens,
)

from loraplex_platform.admission.guarded_store import GuardedStore
from loraplex_platform.admission.limits import Charge, Outcome, period_end_ms
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.redis_store import RedisStore
from loraplex_platform.admission.store import LimitStore

LIMITS = (requests(7), tokens(110), concurrent(3), daily(400), monthly(900))
TTL_MS = 30_000
START_MS = int(datetime(2026, 6, 30, 23, 59, 20, tzinfo=UTC).timestamp()) * 1000


class Op(NamedTuple):
    """A step, after time has passed; a crash is a reservation that nobody settles."""

    what: str
    back: int  # how many admitted requests ago the one to settle was
    tokens: int
    after_ms: int


@dataclass
class Truth:
    """The limits by definition: every request ever admitted is kept, and counted afresh."""

    now: int = START_MS
    reserved: dict[int, tuple[int, int]] = field(default_factory=dict)  # -> at, tokens
    settled: dict[int, int] = field(default_factory=dict)  # -> tokens
    buckets: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        requests_left = self.buckets[0] - Fraction(7 * milliseconds, 60_000)
        tokens_left = self.buckets[1] - Fraction(110 * milliseconds, 60_000)
        self.buckets = (max(Fraction(0), requests_left), max(Fraction(0), tokens_left))

    def reserve(self, request: int, amount: int) -> None:
        self.reserved[request] = (self.now, amount)
        self.buckets = (self.buckets[0] + 1, self.buckets[1] + amount)

    def settle(self, request: int, amount: int) -> bool:
        at, reserved = self.reserved.get(request, (0, 0))
        if request in self.settled or self.now > at + 2 * TTL_MS:
            return False
        self.settled[request] = amount
        self.buckets = (self.buckets[0], max(Fraction(0), self.buckets[1] + amount - reserved))
        return True

    def used(self) -> list[int]:
        held = {
            request: amount
            for request, (at, amount) in self.reserved.items()
            if request not in self.settled and at + TTL_MS > self.now
        }
        counts = [math.ceil(self.buckets[0]), math.ceil(self.buckets[1]), len(held)]
        for kind in ("day", "month"):
            present = period_end_ms(kind, self.now)
            counts.append(
                sum(
                    self.settled.get(request, held.get(request, 0))
                    for request, (at, _) in self.reserved.items()
                    if period_end_ms(kind, at) == present
                )
            )
        return counts


OPS = st.lists(
    st.builds(
        Op,
        st.sampled_from(["reserve", "reserve", "reserve", "settle", "settle", "wait"]),
        st.integers(0, 3),
        st.sampled_from([0, 1, 13, 37, 60, 110]),
        st.sampled_from([0, 0, 0, 1, 701, 9973, TTL_MS - 1, TTL_MS, TTL_MS + 1, 2 * TTL_MS]),
    ),
    min_size=8,
    max_size=40,
)


async def replay(
    store: LimitStore, ops: list[Op], *, is_lazy: bool = False
) -> list[Outcome | bool]:
    """Drives a store and the truth together, and compares them after every step.

    A lazy store tells its ends with the next request: only then they count.
    """
    truth, answers, untold = Truth(), list[Outcome | bool](), dict[int, int]()
    for op in ops:
        truth.advance(op.after_ms)
        if op.what == "reserve":
            for number, actual in untold.items():
                truth.settle(number, actual)
            untold.clear()
            number = len(answers)
            request = claim(f"r{number}", *LIMITS, tokens=op.tokens)
            outcome = await store.reserve(request, TTL_MS / 1000, now_ms=truth.now)
            answers.append(outcome)
            if outcome.admitted:
                truth.reserve(number, op.tokens)
        elif op.what == "settle" and op.back < len(truth.reserved):
            number, (_, reserved) = list(truth.reserved.items())[-1 - op.back]
            request = claim(f"r{number}", *LIMITS, tokens=reserved)
            actual = min(op.tokens, reserved)
            done = await store.settle(request, {"tokens": actual}, now_ms=truth.now)
            if is_lazy:
                untold.setdefault(number, actual)
            else:
                assert done == truth.settle(number, actual)
            answers.append(done)
        if is_lazy and op.what != "reserve":
            continue
        charges = [Charge(limit, 0) for limit in LIMITS]
        readings = await store.read(TENANT, charges, now_ms=truth.now)
        assert [reading.used for reading in readings] == truth.used()
        assert all(0 <= r.used <= limit.value for r, limit in zip(readings, LIMITS, strict=True))
    return answers


@given(OPS)
@settings(max_examples=120, deadline=None)
def test_the_memory_store_always_agrees_with_the_truth(ops: list[Op]) -> None:
    asyncio.run(replay(MemoryStore(), ops))


@given(OPS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_redis_always_agrees_with_the_truth_and_with_memory(redis_url: str, ops: list[Op]) -> None:
    async def both() -> None:
        shared = RedisStore(redis_url, timeout_s=60)
        await shared._redis.flushall()
        assert await replay(shared, ops) == await replay(MemoryStore(), ops)
        await shared.close()

    asyncio.run(both())


@given(OPS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_ends_that_ride_with_the_next_request_are_as_true(redis_url: str, ops: list[Op]) -> None:
    async def ride() -> None:
        shared = RedisStore(redis_url, timeout_s=60)
        await shared._redis.flushall()
        store = GuardedStore(shared, workers=1, flush_after_s=3600)
        await replay(store, ops, is_lazy=True)
        await store.close()

    asyncio.run(ride())


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3000)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_rate_never_lets_more_through_than_a_bucket_and_its_refill(
    asks: list[tuple[int, int]],
) -> None:
    async def drive() -> None:
        store, now, admitted = MemoryStore(), NOON_MS, list[tuple[int, int]]()
        for number, (amount, after_ms) in enumerate(asks):
            now += after_ms
            request = claim(f"r{number}", tokens(100), tokens=amount)
            if (await store.reserve(request, 60, now_ms=now)).admitted:
                admitted.append((now, amount))
        for i, (start, _) in enumerate(admitted):
            for j in range(i, len(admitted)):
                passed = sum(amount for _, amount in admitted[i : j + 1])
                assert passed <= 100 + Fraction(100 * (admitted[j][0] - start), 60_000)

    asyncio.run(drive())
