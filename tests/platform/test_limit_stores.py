"""What both stores promise, one step at a time, in frozen time."""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.platform.limit_stores import (
    MINUTE_MS,
    NOON_MS,
    TENANT,
    claim,
    concurrent,
    daily,
    monthly,
    queued,
    requests,
    spending,
    store,
    tokens,
)

from loraplex_platform.admission.limits import (
    BUDGET_PER_DAY,
    Charge,
    Claim,
    Dimension,
    Limit,
    Reading,
    period_end_ms,
)
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.redis_store import RedisStore
from loraplex_platform.admission.store import LimitStore

__all__ = ["store"]  # a fixture
EVERY_LIMIT = (requests(7), tokens(70), concurrent(7), daily(70), monthly(70))
HOUR_MS = 60 * MINUTE_MS


async def used(store: LimitStore, *limits: Limit, now_ms: int = NOON_MS) -> list[int]:
    charges = [Charge(limit, 0) for limit in limits]
    return [reading.used for reading in await store.read(TENANT, charges, now_ms=now_ms)]


@pytest.mark.parametrize(
    "limit",
    [*EVERY_LIMIT, queued(7), spending(70)],
    ids=lambda limit: limit.dimension.name,
)
async def test_a_hundred_requests_at_once_get_exactly_what_is_allowed(
    store: LimitStore, limit: Limit
) -> None:
    barrier = asyncio.Barrier(100)

    async def ask(number: int) -> bool:
        await barrier.wait()
        request = claim(f"r{number}", limit, tokens=10)
        return (await store.reserve(request, 60, now_ms=NOON_MS)).admitted

    answers = await asyncio.gather(*map(ask, range(100)))
    assert sum(answers) == 7
    assert await used(store, limit) == [limit.value]


async def test_two_workers_over_one_redis_admit_exactly_what_is_allowed(redis_url: str) -> None:
    workers = [RedisStore(redis_url, timeout_s=60) for _ in range(2)]
    asks = [
        workers[i % 2].reserve(claim(f"r{i}", *EVERY_LIMIT, tokens=10), 60, now_ms=NOON_MS)
        for i in range(100)
    ]
    outcomes = await asyncio.gather(*asks)
    assert sum(outcome.admitted for outcome in outcomes) == 7
    await asyncio.gather(*(worker.close() for worker in workers))


@pytest.mark.parametrize("full", EVERY_LIMIT, ids=lambda limit: limit.dimension.name)
async def test_a_rejection_by_one_limit_leaves_all_others_untouched(
    store: LimitStore, full: Limit
) -> None:
    for i in range(7):
        await store.reserve(claim(f"r{i}", full, tokens=10), 60, now_ms=NOON_MS)
    others = [limit for limit in EVERY_LIMIT if limit != full]
    rejected = await store.reserve(claim("late", *EVERY_LIMIT, tokens=10), 60, now_ms=NOON_MS)
    assert not rejected.admitted
    assert await used(store, *others) == [0, 0, 0, 0]
    assert await used(store, full) == [full.value]


@pytest.mark.parametrize("full", EVERY_LIMIT, ids=lambda limit: limit.dimension.name)
async def test_who_waits_as_long_as_told_gets_in_and_not_a_millisecond_before(
    store: LimitStore, full: Limit
) -> None:
    for i in range(7):
        request = claim(f"r{i}", full, tokens=10)
        await store.reserve(request, 60, now_ms=NOON_MS + i)
        if full.dimension.kind != "lease":
            await store.settle(request, {}, now_ms=NOON_MS + i)
    late = claim("late", full, tokens=9)
    wait_ms = (await store.reserve(late, 60, now_ms=NOON_MS + 9)).readings[0].wait_ms
    assert wait_ms
    then = NOON_MS + 9 + wait_ms
    assert not (await store.reserve(late, 60, now_ms=then - 1)).admitted
    assert (await store.reserve(late, 60, now_ms=then)).admitted


async def test_99_percent_of_the_token_limit_for_five_minutes_is_never_rejected(
    store: LimitStore,
) -> None:
    limits = (tokens(6000), requests(60_000), daily(10**6), monthly(10**6))
    for i in range(5 * 99):  # 60 tokens a time, 99 times a minute; estimated at 180
        now = NOON_MS + i * MINUTE_MS // 99
        request = claim(f"r{i}", *limits, tokens=180)
        assert (await store.reserve(request, 600, now_ms=now)).admitted
        assert await store.settle(request, {"tokens": 60}, now_ms=now + 300)
    assert await used(store, limits[2], now_ms=NOON_MS + 5 * MINUTE_MS) == [5 * 99 * 60]


async def test_settling_replaces_the_estimate_by_the_truth_once(store: LimitStore) -> None:
    request = claim("r", *EVERY_LIMIT, tokens=40)
    await store.reserve(request, 60, now_ms=NOON_MS)
    assert await used(store, *EVERY_LIMIT) == [1, 40, 1, 40, 40]
    assert await store.settle(request, {"tokens": 15}, now_ms=NOON_MS)
    assert not await store.settle(request, {"tokens": 15}, now_ms=NOON_MS)
    assert await used(store, *EVERY_LIMIT) == [1, 15, 0, 15, 15]


async def test_an_overrun_is_a_debt_that_is_paid_before_the_next_request(
    store: LimitStore,
) -> None:
    limit = tokens(60)
    request = claim("r", limit, tokens=10)
    await store.reserve(request, 60, now_ms=NOON_MS)
    await store.settle(request, {"tokens": 90}, now_ms=NOON_MS)
    late = await store.reserve(claim("late", limit, tokens=1), 60, now_ms=NOON_MS)
    assert late.readings == (Reading(used=90, reset_ms=90_000, wait_ms=31_000),)


async def test_a_reservation_comes_back_by_itself(store: LimitStore) -> None:
    limits = (concurrent(1), daily(50))
    await store.reserve(claim("crashed", *limits, tokens=50), 30, now_ms=NOON_MS)
    assert await used(store, *limits, now_ms=NOON_MS + 29_999) == [1, 50]
    assert await used(store, *limits, now_ms=NOON_MS + 30_000) == [0, 0]


async def test_a_settlement_of_nothing_forgets_no_expiry(store: LimitStore) -> None:
    limit = concurrent(3)
    for id, ttl_s in (("a", 30), ("b", 30), ("long", 90)):
        await store.reserve(claim(id, limit), ttl_s, now_ms=NOON_MS)
    await store.settle(claim("a", limit), {}, now_ms=NOON_MS)
    later = NOON_MS + 30_000
    assert not await store.settle(claim("a", limit), {}, now_ms=later)
    assert await used(store, limit, now_ms=later) == [1]


async def test_a_late_settlement_still_tells_the_truth(store: LimitStore) -> None:
    limits = (concurrent(1), daily(50))
    request = claim("slow", *limits, tokens=50)
    await store.reserve(request, 30, now_ms=NOON_MS)
    other = claim("other", limits[0])
    assert (await store.reserve(other, 30, now_ms=NOON_MS + 40_000)).admitted
    assert await store.settle(request, {"tokens": 20}, now_ms=NOON_MS + 45_000)
    assert await used(store, *limits, now_ms=NOON_MS + 45_000) == [1, 20]


async def test_a_lease_may_end_before_its_request_and_ends_once(store: LimitStore) -> None:
    limits = (queued(2), concurrent(3))
    first, second = claim("a", *limits), claim("b", *limits)
    for request in (first, second):
        await store.reserve(request, 60, now_ms=NOON_MS)
    for _ in range(2):
        await store.release(first, "queued", now_ms=NOON_MS)
    assert await used(store, *limits) == [1, 2]
    assert await store.settle(first, {}, now_ms=NOON_MS)
    assert await used(store, *limits) == [1, 1]


async def test_a_repeated_reservation_is_charged_once(store: LimitStore) -> None:
    request = claim("r", *EVERY_LIMIT, tokens=60)
    for _ in range(3):
        assert (await store.reserve(request, 60, now_ms=NOON_MS)).admitted
    assert await used(store, *EVERY_LIMIT) == [1, 60, 1, 60, 60]


async def test_each_key_project_and_tenant_has_its_own_count(store: LimitStore) -> None:
    first, second = requests(1, "key_1"), requests(1, "key_2")
    assert (await store.reserve(claim("a", first), 60, now_ms=NOON_MS)).admitted
    assert (await store.reserve(claim("b", second), 60, now_ms=NOON_MS)).admitted
    stranger = claim("c", first, tenant="ten_b")
    assert (await store.reserve(stranger, 60, now_ms=NOON_MS)).admitted
    assert not (await store.reserve(claim("d", first), 60, now_ms=NOON_MS)).admitted


async def test_what_was_reserved_before_midnight_is_not_charged_to_the_next_day(
    store: LimitStore,
) -> None:
    limit, before = daily(50), NOON_MS + 12 * HOUR_MS - 1000
    request = claim("r", limit, tokens=50)
    await store.reserve(request, 60, now_ms=before)
    after = before + 2000
    assert await used(store, limit, now_ms=after) == [0]
    await store.settle(request, {"tokens": 50}, now_ms=after)
    assert await used(store, limit, now_ms=after) == [0]


@pytest.mark.parametrize(
    ("day", "next_month"),
    [
        ("2026-12-31", "2027-01-01"),
        ("2028-02-29", "2028-03-01"),
        ("2027-02-28", "2027-03-01"),
        ("2100-02-28", "2100-03-01"),
        ("2026-04-01", "2026-05-01"),
        ("2000-02-29", "2000-03-01"),
    ],
)
async def test_a_month_ends_where_the_calendar_says(
    store: LimitStore, day: str, next_month: str
) -> None:
    now = int(datetime.fromisoformat(f"{day}T23:59:59+00:00").timestamp()) * 1000
    end = int(datetime.fromisoformat(f"{next_month}T00:00:00+00:00").timestamp()) * 1000
    limit = monthly(1)
    await store.reserve(claim("r", limit), 60, now_ms=now)
    late = await store.reserve(claim("late", limit), 60, now_ms=now)
    assert late.readings[0].wait_ms == end - now


async def test_both_stores_find_the_same_month_ends_over_two_centuries(redis_url: str) -> None:
    shared, limit = RedisStore(redis_url, timeout_s=60), monthly(10)
    start = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp() * 1000)
    for month in range(0, 2400, 7):
        now = start + month * 30 * 24 * HOUR_MS
        (reading,) = await shared.read(TENANT, [Charge(limit, 1)], now_ms=now)
        assert reading.reset_ms == period_end_ms("month", now) - now
    await shared.close()


async def test_a_clock_set_back_neither_refills_nor_blocks_a_rate(store: LimitStore) -> None:
    limit = requests(60)
    for i in range(60):
        await store.reserve(claim(f"r{i}", limit), 60, now_ms=NOON_MS)
    back = NOON_MS - HOUR_MS
    late = await store.reserve(claim("late", limit), 60, now_ms=back)
    assert late.readings[0].wait_ms == 1000
    assert not (await store.reserve(claim("late", limit), 60, now_ms=back)).admitted


async def test_a_clock_set_back_keeps_the_day_and_tells_its_true_end(store: LimitStore) -> None:
    limit, midnight = daily(10), NOON_MS + 12 * HOUR_MS
    request = claim("r", limit, tokens=10)
    await store.reserve(request, 60, now_ms=midnight + 1000)
    back = midnight - 1000
    late = await store.reserve(claim("late", limit), 60, now_ms=back)
    assert late.readings[0].wait_ms == 24 * HOUR_MS + 1000


async def test_a_clock_set_forward_frees_leases_and_refills_rates(store: LimitStore) -> None:
    limits = (requests(1), concurrent(1))
    assert (await store.reserve(claim("a", *limits), 60, now_ms=NOON_MS)).admitted
    forward = NOON_MS + 24 * HOUR_MS
    assert (await store.reserve(claim("b", *limits), 60, now_ms=forward)).admitted


async def test_a_changed_limit_counts_from_what_was_used(store: LimitStore) -> None:
    for i in range(6):
        await store.reserve(claim(f"r{i}", requests(10)), 60, now_ms=NOON_MS)
    assert not (await store.reserve(claim("a", requests(6)), 60, now_ms=NOON_MS)).admitted
    assert (await store.reserve(claim("b", requests(7)), 60, now_ms=NOON_MS)).admitted


async def test_a_lowered_lease_waits_for_as_many_ends_as_it_takes(store: LimitStore) -> None:
    for i in range(250):
        await store.reserve(claim(f"r{i}", concurrent(250)), 60, now_ms=NOON_MS + i)
    late = claim("late", concurrent(40))
    outcome = await store.reserve(late, 60, now_ms=NOON_MS + 1000)
    assert outcome.readings[0].wait_ms == 60_000 + 210 - 1000  # 211 of them must end
    (reading,) = await store.read(TENANT, late.charges, now_ms=NOON_MS + 60_209)
    assert reading.wait_ms == 1
    assert (await store.reserve(late, 60, now_ms=NOON_MS + 60_210)).admitted


async def test_a_limit_of_zero_admits_nobody_and_promises_nothing(store: LimitStore) -> None:
    for limit in (requests(0), concurrent(0), daily(0)):
        outcome = await store.reserve(claim("r", limit), 60, now_ms=NOON_MS)
        assert not outcome.admitted
        assert outcome.readings[0].wait_ms is None


async def test_a_request_larger_than_the_limit_is_told_that_waiting_does_not_help(
    store: LimitStore,
) -> None:
    outcome = await store.reserve(claim("r", tokens(10), tokens=11), 60, now_ms=NOON_MS)
    assert outcome.readings[0].wait_ms is None


async def test_dimensions_of_tomorrow_need_no_change_of_the_stores(store: LimitStore) -> None:
    spend = Dimension("spend_per_month", "nano_usd", "month", strict=True)
    queued = Dimension("enqueued_batch_tokens", "batch_tokens", "lease")
    nine_dollars = 9 * 10**9
    charges = (
        Charge(Limit(spend, "tenant", TENANT, 10**10), nine_dollars),
        Charge(Limit(queued, "tenant", TENANT, 2_000_000), 1_500_000),
    )
    first, second = (Claim(id, TENANT, charges) for id in ("a", "b"))
    assert (await store.reserve(first, 3600, now_ms=NOON_MS)).admitted
    assert not (await store.reserve(second, 3600, now_ms=NOON_MS)).admitted
    await store.settle(first, {"nano_usd": 10**9 - 1}, now_ms=NOON_MS)
    outcome = await store.reserve(second, 3600, now_ms=NOON_MS)
    assert [reading.used for reading in outcome.readings] == [10**10 - 1, 1_500_000]


async def test_the_past_of_a_period_is_told_once(store: LimitStore) -> None:
    limit = daily(100)
    outcome = await store.reserve(claim("r", limit, tokens=30), 60, now_ms=NOON_MS)
    assert outcome.readings[0].is_unseeded
    for _ in range(2):
        await store.seed(TENANT, Charge(limit, 50), now_ms=NOON_MS)
    (reading,) = await store.read(TENANT, [Charge(limit, 0)], now_ms=NOON_MS)
    assert (reading.used, reading.is_unseeded) == (80, False)


async def test_a_rejected_flood_leaves_nothing_in_memory() -> None:
    store = MemoryStore()
    for i in range(100):
        await store.reserve(claim(f"r{i}", requests(0, f"key_{i}")), 60, now_ms=NOON_MS)
    assert not store._states
    assert not store._claims


async def test_memory_forgets_what_no_longer_limits_anybody() -> None:
    store = MemoryStore()
    for i in range(9000):
        request = claim(f"r{i}", requests(60, f"key_{i}"), concurrent(10**6))
        await store.reserve(request, 60, now_ms=NOON_MS + i * 1000)
    assert len(store._states) < 5000
    assert len(store._claims) < 5000


async def test_redis_keys_share_one_slot_and_expire(redis_url: str) -> None:
    shared = RedisStore(redis_url, timeout_s=60)
    await shared.reserve(claim("r", *EVERY_LIMIT, tokens=10), 60, now_ms=NOON_MS)
    names = await shared._redis.keys("*")
    lifetimes = [await shared._redis.pttl(name) for name in names]
    assert len(names) == 9  # a claim, five states, three sets of holds
    assert {name[:12] for name in names} == {b"lpx:{ten_a}:"}
    assert all(0 < lifetime <= 31 * 24 * HOUR_MS for lifetime in lifetimes)
    await shared.close()


async def test_a_window_ends_when_its_limit_says_and_the_next_is_new(store: LimitStore) -> None:
    now = NOON_MS
    first, second = (
        Limit(BUDGET_PER_DAY, "tenant", TENANT, 100, ends_ms=now + n * MINUTE_MS) for n in (1, 2)
    )

    def spend(id: str, limit: Limit, nano: int) -> Claim:
        return Claim(id, TENANT, (Charge(limit, nano),))

    assert (await store.reserve(spend("a", first, 60), 600, now_ms=now)).admitted
    refused = await store.reserve(spend("b", first, 60), 600, now_ms=now + 1)
    assert [(r.used, r.wait_ms) for r in refused.readings] == [(60, MINUTE_MS - 1)]
    later = now + MINUTE_MS
    assert (await store.reserve(spend("b", second, 60), 600, now_ms=later)).admitted
    assert await store.settle(spend("a", first, 60), {"spend": 99}, now_ms=later)
    [reading] = await store.read(TENANT, [Charge(second, 0)], now_ms=later)
    assert reading.used == 60


async def test_a_reading_tells_what_of_it_requests_at_work_still_hold(store: LimitStore) -> None:
    limits = (spending(100), requests(100))
    for id in ("a", "b"):
        await store.reserve(claim(id, *limits, tokens=30), 60, now_ms=NOON_MS)
    await store.settle(claim("a", *limits, tokens=30), {"spend": 5}, now_ms=NOON_MS)
    refused = await store.reserve(claim("c", *limits, tokens=70), 60, now_ms=NOON_MS)
    assert [(reading.used, reading.held) for reading in refused.readings] == [(35, 30), (2, 0)]
