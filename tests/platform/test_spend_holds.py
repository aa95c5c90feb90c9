"""Money is held before the engine works, and released with the fact: the limiter finds the truth again."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.till_stand import Till, open_till, redis_store
from tests.until import until
from tests.usage_stand import add_book, book, num_events, two_tenants

from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.store import LimitStore
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.errors import headers_of
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.errors import Overloaded, QuotaExceeded, QuotaHeld
from loraplex_platform.models import BillingProfile, SpendHold
from loraplex_platform.usage.budget_service import BudgetService
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.meter import Point
from loraplex_platform.usage.money import PICO
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.spending import Spending

CENT = PICO // 100
# A cent is a hundred completion tokens; prompts cost nothing.
DEAR = {
    "prices": [
        {"kind": "completion", "usd_per_million": "100"},
        {"kind": "uncached_prompt", "usd_per_million": "0"},
        {"kind": "cached_prompt", "usd_per_million": "0"},
    ]
}
TOKEN_NANO = 100_000


async def limited(database: Database, pico: int = CENT) -> str:
    """A tenant with dear prices and a hard budget for each month; its id."""
    acme, _ = await two_tenants(database)
    await add_book(database, book(DEAR, id="dear", tenant_id=acme))
    spending = Spending(PriceService(database, SystemClock()))
    budgets = BudgetService(database, SystemClock(), spending)
    await budgets.set(acme, "tenant", acme, "month", pico, is_hard=True)
    return acme


@pytest.fixture
async def till(database: Database, tmp_path: Path) -> AsyncIterator[Till]:
    acme = await limited(database)
    async with open_till(database, MemoryStore(), acme, tmp_path / "spool") as till:
        yield till


async def holds_in(database: Database) -> list[tuple[str, bool, int | None]]:
    """Id, whether it is released, and the tokens that were used."""
    async with database.reading() as session:
        rows = list(await session.scalars(across_tenants(SpendHold)))
    return sorted((row.id, row.released_at is not None, row.used_tokens) for row in rows)


async def test_a_hold_is_written_first_and_released_with_the_event(till: Till) -> None:
    reservation = await till.reserve("req_1")
    assert await holds_in(till.database) == [("req_1", False, None)]
    actual = await till.record("req_1")
    assert await holds_in(till.database) == [("req_1", True, 110)]
    await till.limiter.settle(reservation, actual)
    assert await till.used_nano() == await till.spent_nano() == 10 * TOKEN_NANO
    assert await till.holds.sweep() == 1
    assert await holds_in(till.database) == []


async def test_event_ledger_and_outbox_are_one_transaction(
    database: Database, tmp_path: Path
) -> None:
    """Whatever fails in it, nothing of it is there."""
    acme, is_broken = await limited(database), [True]

    def at(point: Point) -> None:
        if point == "written" and is_broken.pop():
            raise RuntimeError("at the very end")

    async with open_till(database, MemoryStore(), acme, tmp_path / "spool", at) as till:
        await till.reserve("req_1")
        with pytest.raises(RuntimeError):
            await till.record("req_1")
        assert await num_events(database) == await till.spent_nano() == 0
        assert await holds_in(database) == [("req_1", False, None)]
        is_broken.append(False)
        await till.meter.drain()
        assert await num_events(database) == 1
        assert await holds_in(database) == [("req_1", True, 110)]


async def test_what_was_not_served_holds_nothing(till: Till) -> None:
    await till.limiter.settle(await till.reserve("req_1"), None)
    assert await till.used_nano() == 0
    assert await till.holds.sweep() == 1
    assert await holds_in(till.database) == []


async def test_without_its_hold_nothing_is_admitted(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise ConnectionError("the database is gone")

    with monkeypatch.context() as patch:
        patch.setattr(type(till.holds), "take", away)
        with pytest.raises(Overloaded):
            await till.reserve("req_1")
    assert await till.used_nano() == 0


async def test_a_restarted_process_holds_what_still_runs(till: Till, tmp_path: Path) -> None:
    """A new process with an empty memory neither forgets the money nor keeps it for ever."""
    await till.reserve("req_1", most=100)
    other = open_till(till.database, MemoryStore(), till.tenant_id, tmp_path / "other")
    async with other as restarted:
        with pytest.raises(QuotaExceeded):
            await restarted.reserve("req_2", most=1)
        assert await restarted.used_nano() == 100 * TOKEN_NANO
        assert await restarted.used_nano(after_s=901) == 0


async def test_a_dead_process_is_settled_for(till: Till, tmp_path: Path) -> None:
    """It wrote the event, and died before it told the limiter."""
    await till.reserve("req_1")
    await till.record("req_1")
    assert await till.used_nano() == 50 * TOKEN_NANO  # as reserved
    clock = ManualClock(datetime.now(UTC) + timedelta(seconds=11))
    folder = tmp_path / "other"
    async with open_till(till.database, till.store, till.tenant_id, folder, clock=clock) as other:
        assert await other.holds.sweep() == 1
        assert await other.used_nano() == await other.spent_nano() == 10 * TOKEN_NANO
    assert await holds_in(till.database) == []


CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.till_stand import open_till, redis_store
from loraplex_platform.db.database import Database

url, redis, folder, tenant, point = sys.argv[1:]
passed = 0

def die(at):
    global passed
    passed += at == point
    if passed == 3:
        os.kill(os.getpid(), signal.SIGKILL)

async def work():
    store = redis_store(redis)
    async with open_till(Database(url), store, tenant, Path(folder), die) as till:
        for number in range(5):
            reservation = await till.reserve(f"req_{number}", most=20)
            die("admitted")
            actual = await till.record(f"req_{number}")
            await till.limiter.settle(reservation, actual)
            print(number, flush=True)
            die("settled")

asyncio.run(work())
"""
RECORDED = {"admitted": 2, "ended": 2, "spooled": 3, "written": 3, "committed": 3, "settled": 3}


def killed_at(point: str, url: str, redis: str, folder: Path, tenant: str) -> None:
    arguments = [sys.executable, "-c", CHILD, url, redis, str(folder), tenant, point]
    path = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    done = subprocess.run(
        arguments, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


async def check_kill(point: str, url: str, redis_url: str, folder: Path) -> None:
    """Events are the requests that ended; ledger and limiter say the same, now and for good."""
    database = Database(url)
    acme = await limited(database)
    await asyncio.to_thread(killed_at, point, url, redis_url, folder, acme)
    store, clock = redis_store(redis_url), ManualClock(datetime.now(UTC))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        stack.push_async_callback(store.close)
        till = await stack.enter_async_context(
            open_till(database, store, acme, folder, clock=clock)
        )
        await till.meter.drain()
        clock.advance(11)
        await till.holds.sweep()
        assert await num_events(database) == RECORDED[point]
        assert await till.spent_nano() == RECORDED[point] * 10 * TOKEN_NANO
        async with database.reading() as session:
            assert await LedgerRepository(session).unbalanced() == []
        assert os.listdir(folder) == []
        held = {claim.id: claim for claim, _ in await till.holds.open_of(acme)}
        assert list(held) == (["req_2"] if RECORDED[point] == 2 else [])  # it left no trace
        holding = sum(charge.amount for claim in held.values() for charge in claim.charges)
        assert await till.used_nano() == await till.spent_nano() + holding
        assert await till.used_nano(after_s=901) == await till.spent_nano()


@pytest.mark.parametrize("point", ["committed"])
async def test_a_kill_leaves_the_limiter_with_the_truth(
    database: Database, redis_url: str, point: str, tmp_path: Path
) -> None:
    await check_kill(point, database.url, redis_url, tmp_path / "spool")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["admitted", "ended", "spooled", "written", "settled"])
async def test_a_kill_anywhere_leaves_the_limiter_with_the_truth(
    database: Database, redis_url: str, point: str, tmp_path: Path
) -> None:
    await check_kill(point, database.url, redis_url, tmp_path / "spool")


@pytest.mark.slow
@pytest.mark.parametrize("point", RECORDED)
async def test_a_kill_on_postgres_leaves_the_limiter_with_the_truth(
    postgres_url: str, redis_url: str, point: str, tmp_path: Path
) -> None:
    upgrade(postgres_url)
    await check_kill(point, postgres_url, redis_url, tmp_path / "spool")


async def prepaid(database: Database, *grants: int) -> str:
    """A tenant that may spend its credits and no more; its id."""
    acme, _ = await two_tenants(database)
    await add_book(database, book(DEAR, id="dear", tenant_id=acme))
    credits = CreditService(database, SystemClock())
    profile = await credits.profile(acme)
    profile.is_prepaid = True
    await credits.set_profile(profile)
    for number, pico in enumerate(grants):
        await credits.grant(acme, f"grant {number}", pico, funding="paid")
    return acme


async def test_used_up_credits_refuse(database: Database, tmp_path: Path) -> None:
    acme = await prepaid(database, CENT, CENT)  # two hundred tokens
    async with open_till(database, MemoryStore(), acme, tmp_path / "spool") as till:
        for number in range(2):
            reservation = await till.reserve(f"req_{number}", most=90)
            actual = await till.record(f"req_{number}", completion=90)
            await till.limiter.settle(reservation, actual)
        reservation = await till.reserve("req_20", most=90)  # its estimate is cut to what is left
        with pytest.raises(QuotaExceeded, match="prepaid credit") as refused:
            await till.reserve("req_21", most=1)
        assert refused.value.retry_after_s is not None
        await till.limiter.settle(reservation, None)
        balance = await CreditService(database, SystemClock()).balance(acme)
        assert balance.available_pico == 20 * TOKEN_NANO * 1000


async def test_a_new_grant_admits_again_within_a_second(database: Database, tmp_path: Path) -> None:
    acme = await prepaid(database)
    clock = ManualClock(datetime.now(UTC))
    folder = tmp_path / "spool"
    async with open_till(database, MemoryStore(), acme, folder, clock=clock) as till:
        with pytest.raises(QuotaExceeded):
            await till.reserve("req_1")
        await CreditService(database, clock).grant(acme, "more", CENT)
        clock.advance(1)
        await till.reserve("req_2")


async def test_many_at_once_overshoot_by_no_more_than_their_estimates_missed(
    database: Database, tmp_path: Path
) -> None:
    """The bound: what was generated beyond what was reserved, of the requests that ran at once."""
    acme = await prepaid(database, CENT)
    async with open_till(database, MemoryStore(), acme, tmp_path / "spool") as till:

        async def ask(number: int) -> int:
            try:
                reservation = await till.reserve(f"req_{number:02}", most=30)
            except QuotaExceeded:
                return 0
            await asyncio.sleep(0)
            actual = await till.record(f"req_{number:02}", completion=30)
            await till.limiter.settle(reservation, actual)
            reserved = max(c.amount for c in reservation.claim.charges)
            return 30 * TOKEN_NANO - reserved

        missed = sum(await asyncio.gather(*(ask(number) for number in range(50))))
        assert 0 < await till.spent_nano() <= CENT // 1000 + missed
        with pytest.raises(QuotaExceeded):
            await till.reserve("req_99", most=1)


async def test_a_prepaid_tenants_expired_credit_is_gone(database: Database, tmp_path: Path) -> None:
    acme = await prepaid(database)
    now = ManualClock(datetime.now(UTC))
    soon = now.now() + timedelta(hours=1)
    await CreditService(database, now).grant(acme, "brief", CENT, expires_at=soon)
    async with open_till(database, MemoryStore(), acme, tmp_path / "spool", clock=now) as till:
        await till.limiter.settle(await till.reserve("req_1"), None)
        now.advance(3600)
        with pytest.raises(QuotaExceeded):
            await till.reserve("req_2")


async def test_who_is_billed_afterwards_needs_no_credit(database: Database, tmp_path: Path) -> None:
    acme, _ = await two_tenants(database)
    await CreditService(database, SystemClock()).set_profile(
        BillingProfile(
            tenant_id=acme,
            zone="UTC",
            legal_name="",
            address="",
            tax_basis_points=0,
            minimum_fee_cents=0,
            payment_days=30,
            is_prepaid=False,
        )
    )
    async with open_till(database, MemoryStore(), acme, tmp_path / "spool") as till:
        await till.reserve("req_1", most=10**6)
        assert await holds_in(database) == []


async def test_a_budget_for_twenty_lets_twenty_through(database: Database, tmp_path: Path) -> None:
    """However many tokens each says that it may take."""
    acme = await limited(database, 20 * 10 * TOKEN_NANO * 1000)
    async with open_till(database, MemoryStore(), acme, tmp_path / "spool") as till:
        for number in range(20):
            reservation = await till.reserve(f"req_{number:02}", most=100_000)
            actual = await till.record(f"req_{number:02}", completion=10)
            await till.limiter.settle(reservation, actual)
        with pytest.raises(QuotaExceeded):
            await till.reserve("req_20", most=100_000)


async def check_forty_at_once(database: Database, store: LimitStore, folder: Path) -> None:
    """Nothing is known of their answers, and each may be huge: none is refused for a guess."""
    acme = await limited(database, 20 * 10 * TOKEN_NANO * 1000)
    async with open_till(database, store, acme, folder, patience_s=60) as till:

        async def ask(number: int) -> bool:
            try:
                reservation = await till.reserve(f"req_{number:02}", most=100_000)
            except QuotaExceeded:
                return False
            actual = await till.record(f"req_{number:02}", completion=10)
            await till.limiter.settle(reservation, actual)
            return True

        passed = await asyncio.gather(*(ask(number) for number in range(40)))
        assert sum(passed) == 20
        assert await till.spent_nano() == await till.used_nano() == 20 * 10 * TOKEN_NANO


async def test_of_forty_at_once_exactly_the_twenty_that_fit_pass(
    database: Database, tmp_path: Path
) -> None:
    await check_forty_at_once(database, MemoryStore(), tmp_path / "spool")


@pytest.mark.slow
async def test_of_forty_at_once_twenty_pass_over_redis_and_postgres(
    postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    upgrade(postgres_url)
    async with AsyncExitStack() as stack:
        database, store = Database(postgres_url), redis_store(redis_url)
        stack.push_async_callback(database.close)
        stack.push_async_callback(store.close)
        await check_forty_at_once(database, store, tmp_path / "spool")


async def test_what_others_hold_is_waited_for_and_then_may_be_asked_for_again(till: Till) -> None:
    reservation = await till.reserve("req_1", most=100)
    with pytest.raises(QuotaHeld) as held:
        await till.reserve("req_2", most=1)
    assert held.value.retry_after_s == 1.0  # as long as a request of which nothing is known
    assert headers_of(held.value)["x-should-retry"] == "true"
    await till.limiter.settle(reservation, None)
    await till.reserve("req_2", most=1)


async def test_only_who_is_alone_holds_less_than_its_estimate(
    database: Database, tmp_path: Path
) -> None:
    """A second one waits for the first, though a little is left."""
    acme = await limited(database)
    folder = tmp_path / "spool"
    async with open_till(database, MemoryStore(), acme, folder, patience_s=60) as till:
        first = await till.reserve("req_1", most=90)
        waiting = asyncio.create_task(till.reserve("req_2", most=90))
        await until(lambda: waiting.done() or bool(till.limiter._gate.patience._queues))
        await till.limiter.settle(first, None)
        second = await waiting
        assert second.claim is not None
        assert [c.amount for c in second.claim.charges] == [90 * TOKEN_NANO]
