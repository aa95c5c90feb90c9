"""Redis away, hung, forbidding scripts: requests go on within local shares, and it recovers."""

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests import leaping_time
from tests.platform.limit_stores import (
    NOON_MS,
    TENANT,
    claim,
    concurrent,
    daily,
    queued,
    requests,
    script_calls,
    tokens,
)
from tests.services import RedisServer, black_hole, running_redis

from loraplex_platform.admission.guarded_store import Breaker, GuardedStore
from loraplex_platform.admission.limits import Charge, Limit, Outcome
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.owed import Ending, Owed
from loraplex_platform.admission.redis_store import TIMEOUT_S, RedisStore
from loraplex_platform.admission.store import StoreUnavailable

WORKERS = 4
NEVER_S = 3600.0  # the test itself says when endings are told
NUMBERS = itertools.count()


class Clock:
    """The breaker's time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
async def guarded(server: RedisServer, clock: Clock) -> AsyncIterator[GuardedStore]:
    shared = RedisStore(server.url, timeout_s=60)
    store = GuardedStore(shared, WORKERS, Breaker(clock), flush_after_s=NEVER_S)
    yield store
    await store.close()


async def admitted(store: GuardedStore, limit: Limit, asks: int = 20) -> int:
    outcomes = [
        await store.reserve(claim(f"r{next(NUMBERS)}", limit), 60, now_ms=NOON_MS)
        for _ in range(asks)
    ]
    return sum(outcome.admitted for outcome in outcomes)


async def test_without_redis_each_worker_admits_its_share(
    guarded: GuardedStore, server: RedisServer
) -> None:
    assert await admitted(guarded, requests(8)) == 8
    server.kill()
    assert await admitted(guarded, requests(8)) == 8 // WORKERS
    assert guarded.is_degraded


async def test_it_recovers_by_itself(
    guarded: GuardedStore, server: RedisServer, clock: Clock
) -> None:
    server.kill()
    assert await admitted(guarded, requests(8)) == 2
    server.start()
    assert await admitted(guarded, requests(8, "key_2")) == 2  # the breaker is still open
    clock.now += 1.0
    assert await admitted(guarded, requests(8, "key_3")) == 8
    assert not guarded.is_degraded


async def test_a_strict_limit_has_no_stand_in(guarded: GuardedStore, server: RedisServer) -> None:
    strict = Limit(daily(1000).dimension, "project", "proj_1", 1000, strict=True)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await guarded.reserve(claim("r", requests(8), strict), 60)
    assert (await guarded.reserve(claim("s", requests(8)), 60)).is_local


async def test_forbidden_scripts_are_like_no_redis(
    guarded: GuardedStore, server: RedisServer, clock: Clock
) -> None:
    assert await admitted(guarded, requests(8)) == 8
    server.execute("ACL", "SETUSER", "default", "-@scripting")
    assert await admitted(guarded, requests(8)) == 2
    assert guarded.is_degraded
    server.execute("ACL", "SETUSER", "default", "+@all")
    clock.now += 1.0
    assert await admitted(guarded, requests(8, "key_2")) == 8


async def test_a_forgotten_script_is_sent_again(guarded: GuardedStore, server: RedisServer) -> None:
    assert await admitted(guarded, requests(8), asks=4) == 4
    server.execute("SCRIPT", "FLUSH")
    assert await admitted(guarded, requests(8)) == 4
    assert not guarded.is_degraded


@contextmanager
def hurried(store: RedisStore) -> Iterator[None]:
    """It waits as long for an answer as where nothing else is said."""
    patience_s, store._timeout_s = store._timeout_s, TIMEOUT_S
    yield
    store._timeout_s = patience_s


async def waited_s(*asks: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await asyncio.gather(*asks)
    return loop.time() - started_s


def test_a_black_hole_costs_three_requests_100_ms_and_the_others_nothing(clock: Clock) -> None:
    async def ask_one_by_one(store: GuardedStore) -> list[float]:
        asks = (store.reserve(claim(f"r{i}", requests(100)), 60) for i in range(6))
        seconds = [await waited_s(ask) for ask in asks]
        await store.close()
        return seconds

    with black_hole() as port:
        shared = RedisStore(f"redis://127.0.0.1:{port}/0")
        store = GuardedStore(shared, WORKERS, Breaker(clock), flush_after_s=NEVER_S)
        seconds = leaping_time.run(ask_one_by_one(store))
    assert seconds == pytest.approx([TIMEOUT_S] * 3 + [0.0] * 3)


def test_a_hundred_requests_into_a_black_hole_all_end_in_100_ms(clock: Clock) -> None:
    outcomes = list[Outcome]()

    async def ask(store: GuardedStore, number: int) -> None:
        outcomes.append(await store.reserve(claim(f"r{number}", requests(400)), 60))

    async def ask_together(store: GuardedStore) -> float:
        seconds = await waited_s(*(ask(store, number) for number in range(100)))
        await store.close()
        return seconds

    with black_hole() as port:
        shared = RedisStore(f"redis://127.0.0.1:{port}/0", max_connections=8)
        store = GuardedStore(shared, WORKERS, Breaker(clock), flush_after_s=NEVER_S)
        seconds = leaping_time.run(ask_together(store))
    assert [outcome.is_local for outcome in outcomes] == [True] * 100
    assert seconds == pytest.approx(TIMEOUT_S)


async def test_an_answer_that_comes_too_late_is_never_taken_for_another(
    server: RedisServer,
) -> None:
    store = RedisStore(server.url, timeout_s=60)
    await store.reserve(claim("warm", requests(5)), 60, now_ms=NOON_MS)
    server.pause()
    with hurried(store), pytest.raises(StoreUnavailable):
        await store.reserve(claim("lost", requests(5)), 60, now_ms=NOON_MS)
    server.resume()
    patient = RedisStore(server.url, timeout_s=60)
    (reading,) = await patient.read(TENANT, [Charge(tokens(9), 1)], now_ms=NOON_MS)
    assert reading.used == 0
    for again in (store, patient):
        await again.close()


async def test_what_could_not_be_settled_is_settled_when_redis_is_back(
    guarded: GuardedStore, server: RedisServer
) -> None:
    limits = (concurrent(5), daily(100))
    lost, later = (claim(id, *limits, tokens=40) for id in ("lost", "later"))
    await guarded.reserve(lost, 60, now_ms=NOON_MS)
    await guarded.reserve(later, 60, now_ms=NOON_MS)
    server.execute("ACL", "SETUSER", "default", "-@scripting")
    await guarded.settle(lost, {"tokens": 7}, now_ms=NOON_MS)
    await guarded.flush(now_ms=NOON_MS)
    server.execute("ACL", "SETUSER", "default", "+@all")
    await guarded.settle(later, {"tokens": 2}, now_ms=NOON_MS)
    readings = await guarded.read(TENANT, [Charge(limit, 0) for limit in limits], now_ms=NOON_MS)
    assert [reading.used for reading in readings] == [0, 9]


async def test_what_redis_took_without_being_heard_is_given_back(server: RedisServer) -> None:
    limits = (concurrent(2), requests(9))
    shared = RedisStore(server.url, timeout_s=60)
    store = GuardedStore(shared, WORKERS, flush_after_s=NEVER_S)
    before = claim("before", *limits)
    await store.reserve(before, 60, now_ms=NOON_MS)
    server.pause()
    with hurried(shared):
        assert (await store.reserve(claim("unheard", *limits), 60, now_ms=NOON_MS)).is_local
    server.resume()
    charges = [Charge(limit, 0) for limit in limits]
    patient = RedisStore(server.url, timeout_s=60)
    assert [r.used for r in await patient.read(TENANT, charges, now_ms=NOON_MS)] == [2, 2]
    await store.settle(before, {}, now_ms=NOON_MS)
    await store.flush(now_ms=NOON_MS)
    assert [r.used for r in await patient.read(TENANT, charges, now_ms=NOON_MS)] == [0, 1]
    for each in (store, patient):
        await each.close()


async def test_endings_ride_with_the_next_request_of_their_tenant(
    guarded: GuardedStore, server: RedisServer
) -> None:
    limits = (requests(1000), tokens(100_000), concurrent(1000), queued(1000), daily(10**6))
    before = script_calls(server)
    for number in range(100):
        request = claim(f"r{number}", *limits, tokens=40)
        outcome = await guarded.reserve(request, 60, now_ms=NOON_MS)
        request = dataclasses.replace(request, readings=outcome.readings)
        await guarded.release(request, "queued", now_ms=NOON_MS)
        await guarded.settle(request, {"tokens": 7}, now_ms=NOON_MS)
    assert script_calls(server) - before == 100
    charges = [Charge(limit, 0) for limit in limits]
    readings = await guarded.read(TENANT, charges, now_ms=NOON_MS)
    assert [reading.used for reading in readings] == [100, 700, 0, 0, 700]


async def test_a_request_sees_all_that_ended_here_before_it(guarded: GuardedStore) -> None:
    """Though nobody is told of an end before: it comes along, and is the first to count."""
    limit = concurrent(1)
    for number in range(5):
        request = claim(f"r{number}", limit)
        assert (await guarded.reserve(request, 60, now_ms=NOON_MS)).admitted
        assert not (await guarded.reserve(claim("other", limit), 60, now_ms=NOON_MS)).admitted
        await guarded.settle(request, {}, now_ms=NOON_MS)


async def test_who_took_a_scarce_place_gives_it_back_at_once(
    guarded: GuardedStore, server: RedisServer
) -> None:
    other = RedisStore(server.url, timeout_s=60)
    request = claim("mine", concurrent(1))
    outcome = await guarded.reserve(request, 60, now_ms=NOON_MS)
    request = dataclasses.replace(request, readings=outcome.readings)
    await guarded.settle(request, {}, now_ms=NOON_MS)
    assert (await other.reserve(claim("theirs", concurrent(1)), 60, now_ms=NOON_MS)).admitted
    await other.close()


async def test_where_no_request_follows_endings_are_told_a_moment_later() -> None:
    told = asyncio.Event()

    class Told(MemoryStore):
        async def end(self, endings: Sequence[Ending], *, now_ms: int | None = None) -> None:
            await super().end(endings, now_ms=now_ms)
            told.set()

    store = GuardedStore(Told(), WORKERS, flush_after_s=0.001)
    await store.reserve(claim("a", concurrent(9)), 60)
    await store.settle(claim("a", concurrent(9)), {})
    await asyncio.wait_for(told.wait(), 60)
    await store.close()


async def test_what_the_next_request_takes_along_is_not_told_by_itself() -> None:
    told: list[list[str]] = []  # by the last request, or by themselves

    class Told(MemoryStore):
        async def end(self, endings: Sequence[Ending], *, now_ms: int | None = None) -> None:
            told.append([ending.claim.id for ending in endings])
            await super().end(endings, now_ms=now_ms)

    store = GuardedStore(Told(), WORKERS, flush_after_s=NEVER_S)
    for id in ("a", "b", "c"):
        await store.reserve(claim(id, concurrent(9)), 60)
        num_told = len(told)
        await store.settle(claim(id, concurrent(9)), {})
        await store.look()
        assert len(told) == num_told
    await store.look()
    assert told[num_told:] == [["c"]]
    await store.close()


async def test_what_ended_is_told_before_a_process_stops(server: RedisServer) -> None:
    store = GuardedStore(RedisStore(server.url, timeout_s=60), WORKERS, flush_after_s=NEVER_S)
    await store.reserve(claim("a", concurrent(9)), 60)
    await store.settle(claim("a", concurrent(9)), {})
    await store.close()
    patient = RedisStore(server.url, timeout_s=60)
    (reading,) = await patient.read(TENANT, [Charge(concurrent(9), 0)])
    assert reading.used == 0
    await patient.close()


class SlowStore(MemoryStore):
    """A shared store that takes its time, or is away."""

    is_away = False

    async def end(self, endings: Sequence[Ending], *, now_ms: int | None = None) -> None:
        await asyncio.sleep(0.01)
        if self.is_away:
            raise StoreUnavailable("away")
        await super().end(endings, now_ms=now_ms)


async def test_many_settlements_at_once_catch_up_together() -> None:
    shared, limit = SlowStore(), concurrent(300)
    store = GuardedStore(shared, WORKERS, flush_after_s=NEVER_S)
    claims = [claim(f"c{i}", limit) for i in range(300)]
    for each in claims:
        await store.reserve(each, 60, now_ms=NOON_MS)
    shared.is_away = True
    await asyncio.gather(*(store.settle(c, {}, now_ms=NOON_MS) for c in claims[:150]))
    await store.flush(now_ms=NOON_MS)
    shared.is_away = False
    await asyncio.gather(*(store.settle(c, {}, now_ms=NOON_MS) for c in claims[150:]))
    await asyncio.gather(*(store.flush(now_ms=NOON_MS) for _ in range(3)))
    (reading,) = await store.read(TENANT, [Charge(limit, 0)], now_ms=NOON_MS)
    assert reading.used == 0
    await store.close()


def test_what_is_owed_is_bounded_and_each_request_is_in_it_once() -> None:
    owed = Owed(max_endings=3)
    for id in ("a", "b", "b", "c", "d"):
        owed.add(Ending(claim(id, concurrent(1)), {}, is_final=id != "b"))
    owed.add(Ending(claim("b", concurrent(1)), {}))
    owed.put_back([Ending(claim("c", concurrent(1)), {}, is_final=False)])
    taken = owed.take(TENANT, 9)
    assert [(ending.claim.id, ending.is_final) for ending in taken] == [
        ("b", True),
        ("c", True),
        ("d", True),
    ]
    assert (len(owed), owed.tenants) == (0, [])


async def test_a_claim_taken_locally_is_settled_locally(
    guarded: GuardedStore, server: RedisServer
) -> None:
    limit = concurrent(4)
    server.kill()
    outcome = await guarded.reserve(claim("a", limit), 60, now_ms=NOON_MS)
    assert not (await guarded.reserve(claim("b", limit), 60, now_ms=NOON_MS)).admitted
    assert outcome.is_local
    local = dataclasses.replace(claim("a", limit), is_local=True)
    assert await guarded.settle(local, {}, now_ms=NOON_MS)  # at once: it is here
    assert (await guarded.reserve(claim("b", limit), 60, now_ms=NOON_MS)).admitted


async def test_a_request_as_large_as_the_whole_limit_is_not_refused_for_good(
    guarded: GuardedStore, server: RedisServer
) -> None:
    server.kill()
    outcome = await guarded.reserve(claim("r", tokens(100), tokens=90), 60, now_ms=NOON_MS)
    assert outcome.admitted


async def test_a_redis_that_lost_everything_starts_afresh(
    guarded: GuardedStore, server: RedisServer
) -> None:
    held = claim("held", concurrent(1))
    await guarded.reserve(held, 60, now_ms=NOON_MS)
    server.restart()
    await guarded.read("", ())  # finds the old connection dead
    outcome = await guarded.reserve(claim("next", concurrent(1)), 60, now_ms=NOON_MS)
    assert (outcome.admitted, outcome.is_local) == (True, False)
    await guarded.settle(held, {}, now_ms=NOON_MS)
    (reading,) = await guarded.read(TENANT, [Charge(concurrent(1), 0)], now_ms=NOON_MS)
    assert reading.used == 1  # an unknown end frees nobody else's place


def test_the_breaker_lets_one_caller_try_each_pause(clock: Clock) -> None:
    breaker = Breaker(clock, failures=3, pause_s=1.0)
    for _ in range(3):
        assert breaker.allows()
        breaker.failed()
    assert not breaker.allows()
    clock.now = 1.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert all(breaker.allows() for _ in range(3))
