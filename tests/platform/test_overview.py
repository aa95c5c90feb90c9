"""The overview: what the day cost, what runs together in a step, and what needs somebody."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.usage_stand import add_book, book, facts, post, two_tenants

from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import EngineStats, SequenceStats, TokenCounters
from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.principal import COMMAND_LINE, Actor, Administrator
from loraplex_platform.models import RejectionCount
from loraplex_platform.overview.live import live_of
from loraplex_platform.overview.service import OverviewService
from loraplex_platform.overview.spent import SpentToday
from loraplex_platform.usage.budget_service import BudgetService
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.reconciliation import Drift
from loraplex_platform.usage.spending import Spending

DAY = datetime(2026, 6, 15, tzinfo=UTC)
DEAR = {"prices": [{"kind": "completion", "usd_per_million": "100"}]}


class Limiter:
    """Says what the test wants."""

    is_degraded = False

    async def probe(self) -> None:
        pass


def sequence(tenant: str, adapter: str | None, phase: str, **more: Any) -> SequenceStats:
    values = {"tier": "standard", "reason": None, "prompt_tokens": 1, "completion_tokens": 0}
    return SequenceStats(
        "req", tenant, adapter=adapter, phase=phase, waited_s=0.0, **values | more  # type: ignore[arg-type]
    )  # fmt: skip


def stats(*sequences: SequenceStats) -> EngineStats:
    return EngineStats(
        "e", 1, 0.0, 0, 0, sequences, free_blocks=5, num_blocks=8, free_slots=1, num_slots=4,
        resident_adapters=("v1", "v2"), step_s=0.01, steps=1, tokens=TokenCounters(),
    )  # fmt: skip


def tenants_admin(tenant_id: str) -> Administrator:
    return Administrator(Actor("person", "per_1"), "tenant_admin", tenant_id)


@dataclass
class Checked:
    """Books of which the test says what disagrees."""

    alarms: list[Drift] = field(default_factory=list)


@pytest.fixture
def overview_of(database: Database) -> Callable[..., OverviewService]:
    def make(
        engine: FakeEngine, limiter: Limiter, books: Checked, clock: ManualClock
    ) -> OverviewService:
        return OverviewService(engine, database, limiter, books, clock)

    return make


async def test_day_costs_what_the_ledger_says(database: Database) -> None:
    acme, globex = await two_tenants(database)
    await add_book(database, book(DEAR, id="dear", tenant_id=globex))
    clock = ManualClock(DAY + timedelta(hours=5))
    spent = SpentToday(clock)
    async with database.reading() as session:
        assert await spent.pico(session, COMMAND_LINE) == 0
    for hour in (-1, 0, 3, 5):  # one is yesterday's
        at = DAY + timedelta(hours=hour)
        events = [facts(t, started_at=at, adapter_version="v") for t in (acme, globex)]
        await post(database, events)
    for later in (2, 3, 10):  # quarters settle; nothing is counted twice or lost
        async with database.reading() as session:
            ledger, today = LedgerRepository(session), Period(DAY, DAY + timedelta(days=1))
            owed = {t: await ledger.balance(t, "receivable", period=today) for t in (acme, globex)}
            fresh = SpentToday(clock)
            assert await fresh.pico(session, COMMAND_LINE) == sum(owed.values()) > 0
            assert await fresh.pico(session, COMMAND_LINE) == sum(owed.values())
            assert await fresh.pico(session, tenants_admin(globex)) == owed[globex]
        clock.advance(later * 3600)
        await post(database, [facts(acme, started_at=clock.now())])
    clock.advance(86_400)
    async with database.reading() as session:
        assert await fresh.pico(session, COMMAND_LINE) == 0


async def test_remembered_quarters_and_new_ones_add_up(database: Database) -> None:
    acme, _ = await two_tenants(database)
    clock = ManualClock(DAY + timedelta(hours=2))
    spent, seen = SpentToday(clock), []
    for _ in range(8):
        await post(database, [facts(acme, started_at=clock.now())])
        async with database.reading() as session:
            seen.append(await spent.pico(session, COMMAND_LINE))
        clock.advance(40 * 60)
    assert seen == [seen[0] * n for n in range(1, 9)]


async def test_adapters_cost_what_is_named_for_them(database: Database) -> None:
    acme, _ = await two_tenants(database)
    prices = [{"kind": "completion", "usd_per_million": "100", "adapter": "*"}]
    prices += [{"kind": "completion", "usd_per_million": "900", "adapter": "named"}]
    await add_book(database, book({"prices": prices}, id="dear", tenant_id=acme))
    clock = ManualClock(DAY + timedelta(hours=5))
    for version in (None, "named", "v1", "v2"):
        await post(database, [facts(acme, started_at=clock.now(), adapter_version=version)])
    async with database.reading() as session:
        today = Period(DAY, DAY + timedelta(days=1))
        owed = await LedgerRepository(session).balance(acme, "receivable", period=today)
        assert await SpentToday(clock).pico(session, COMMAND_LINE) == owed > 0


def test_step_is_told_by_tenant_and_adapter() -> None:
    live = live_of(
        stats(
            sequence("acme", "v1", "prefill"),
            sequence("globex", "v2", "decode"),
            sequence("globex", "v2", "decode"),
            sequence("globex", "v2", "prefill"),
            sequence("globex", None, "waiting", reason="kv"),
        ),
        COMMAND_LINE,
    )
    assert [tuple(each) for each in live.adapters] == [
        ("globex", "v2", 1, 2, 0),
        ("acme", "v1", 1, 0, 0),
        ("globex", None, 0, 0, 1),
    ]
    assert (live.adapters_in_step, live.running, live.waiting) == (2, 4, 1)
    assert live.device is not None
    assert live.device.num_resident == 2


def test_tenants_people_see_their_own_sequences_and_no_device() -> None:
    both = stats(sequence("acme", "v1", "decode"), sequence("globex", "v2", "decode"))
    live = live_of(both, tenants_admin("acme"))
    assert [each.tenant_id for each in live.adapters] == ["acme"]
    assert live.device is None


async def test_alerts_say_what_needs_somebody(
    database: Database, overview_of: Callable[..., OverviewService]
) -> None:
    acme, globex = await two_tenants(database)
    clock, limiter = ManualClock(DAY + timedelta(hours=12, seconds=30)), Limiter()
    engine, books = FakeEngine(), Checked()
    overview = overview_of(engine, limiter, books, clock)

    async def kinds(by: Administrator = COMMAND_LINE) -> list[str]:
        clock.advance(3)
        return [alert.kind for alert in (await overview.of(by)).alerts]

    assert await kinds() == []
    await engine.close()
    assert await kinds() == ["engine_silent"]
    limiter.is_degraded = True
    assert await kinds() == ["engine_silent", "limiter_degraded"]
    assert await kinds(tenants_admin(acme)) == ["engine_silent"]
    books.alarms = [Drift("tokens", acme, 1), Drift("money", globex, -5)]
    assert await kinds() == ["engine_silent", "limiter_degraded", "drift", "drift"]
    [*_, first, second] = (await overview.of(COMMAND_LINE)).alerts
    assert (first.drift, second.drift, first.is_bad) == (*books.alarms, True)
    assert await kinds(tenants_admin(acme)) == ["engine_silent"]
    async with changing(database, COMMAND_LINE.actor, clock) as session:
        session.add(
            RejectionCount(
                tenant_id=acme, minute=DAY + timedelta(hours=11, minutes=58), key_id="k",
                reason="exceeded", limit=f"requests_per_minute:tenant:{acme}", count=30,
            )
        )  # fmt: skip
    budgets = BudgetService(database, clock, Spending(PriceService(database, clock)))
    await budgets.set(acme, "tenant", acme, "month", 1, is_hard=False)
    await post(database, [facts(acme, started_at=clock.now())])
    await budgets.watch()
    assert await kinds(tenants_admin(acme)) == ["engine_silent", "many_refused", "budget"]
    assert await kinds(tenants_admin(globex)) == ["engine_silent"]
    [*_, alert] = (await overview.of(tenants_admin(acme))).alerts
    assert (alert.percent, alert.tenant_id, alert.is_bad) == (100, acme, True)
