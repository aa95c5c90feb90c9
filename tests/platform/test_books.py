"""Events become sums and money once, in any order, however often they come."""

import asyncio
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import event
from tests.many_events import JUNE, effort_of, seed_events
from tests.platform_stand import home_like
from tests.usage_stand import (
    NOON,
    any_facts,
    books_of,
    entries_of,
    facts,
    num_events,
    post,
    quarters_of,
    two_tenants,
)

from loraplex_platform.audit.trail import changing
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import LatencyMinute, Tenant, UsageMinute
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.books import prune_minutes, rebuild
from loraplex_platform.usage.exports import ExportService
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.invoice_service import Month
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.rating import cost_of_quarter, cost_pico, sku_of, tokens_of
from loraplex_platform.usage.repository import UsageRepository
from loraplex_platform.usage.rollups import quantile_s


async def test_an_event_moves_money_once(database: Database) -> None:
    acme, _ = await two_tenants(database)
    event = facts(acme, prompt_tokens=100, cached_tokens=40, completion_tokens=10)
    assert await post(database, [event, event]) == 1
    assert await post(database, [event]) == 0
    pico = 60 * 100_000 + 40 * 20_000 + 10 * 400_000
    transaction = f"use:{event.request_id}"
    assert await entries_of(database) == {
        (transaction, "receivable"): pico,
        (transaction, "revenue"): -pico,
    }


async def test_a_fault_of_ours_is_counted_and_costs_nothing(database: Database) -> None:
    acme, _ = await two_tenants(database)
    await post(database, [facts(acme, outcome="error", delivered=False)])
    assert await entries_of(database) == {}
    [(requests, failed, *paid, unbilled, _, generated)] = (await quarters_of(database)).values()
    assert (requests, failed, paid, unbilled, generated) == (1, 1, [0, 0, 0], 110, 10)


async def books_after(home: Settings, batches: list[list[UsageFacts]]) -> tuple[object, ...]:
    """What a fresh database says once these were posted."""
    database = Database(home.database)
    async with changing(database, COMMAND_LINE, ManualClock()) as session:
        session.add_all(Tenant(id=id, name=id, state="active", created_at=NOON) for id in "ab")
    for batch in batches:
        await post(database, batch)
    state = await entries_of(database), await quarters_of(database), await num_events(database)
    await database.close()
    return state


@hypothesis_settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(any_facts(("a", "b")), min_size=1, max_size=12), st.data())
def test_order_repetition_and_delay_change_nothing(
    migrated: Path, events: list[UsageFacts], data: st.DataObject
) -> None:
    again = data.draw(st.permutations(events + events[: len(events) // 2]))
    cut = data.draw(st.integers(0, len(again)))
    slowly = [*([event] for event in again[:cut]), again[cut:] or events]
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        homes = [home_like(migrated.parent, Path(folder)) for folder in (one, other)]
        at_once, later = (
            asyncio.run(books_after(home, batches))
            for home, batches in zip(homes, ([events], slowly), strict=True)
        )
    assert at_once == later


async def test_events_times_prices_are_ledger_and_roll_ups(database: Database) -> None:
    acme, _ = await two_tenants(database)
    events = [
        facts(
            acme,
            started_at=NOON + timedelta(minutes=7 * i),
            tier=("interactive", "standard", "batch")[i % 3],
            adapter_version="version-1" if i % 2 else None,
            prompt_tokens=100 + i,
            completion_tokens=i,
        )
        for i in range(60)
    ]
    await post(database, events)
    async with database.reading() as session:
        tariffs = await PriceRepository(session).tariffs(acme)
        owed = await LedgerRepository(session).balance(acme, "receivable")
        usage = UsageRepository(session)
        quarters = await usage.quarters(acme, Period(NOON, NOON + timedelta(hours=8)))
        unbalanced = await LedgerRepository(session).unbalanced()
    by_hand = sum(cost_pico(sku_of(e), tokens_of(e), tariffs.at(e.started_at)) for e in events)
    assert owed == by_hand == sum(cost_of_quarter(q, tariffs.at(q.bucket)) for q in quarters)
    assert unbalanced == []


async def test_roll_ups_can_be_made_anew(database: Database) -> None:
    acme, globex = await two_tenants(database)
    start = NOON - timedelta(days=3)
    events = [
        facts(tenant, started_at=start + timedelta(hours=5 * i))
        for i in range(30)
        for tenant in (acme, globex)
    ]
    await post(database, events)
    kept = await quarters_of(database)
    async with database.unit_of_work() as session:
        await UsageRepository(session).clear_quarters(Period(start, NOON + timedelta(days=9)))
    assert await quarters_of(database) == {}
    assert await rebuild(database, ManualClock(NOON + timedelta(days=4))) == 60
    assert await quarters_of(database) == kept


async def test_minutes_can_be_made_anew(database: Database) -> None:
    acme, globex = await two_tenants(database)
    started = [NOON - timedelta(hours=h, minutes=7) for h in (0, 1, 30, 47, 60)]
    await post(database, [facts(t, started_at=at) for at in started for t in (acme, globex, acme)])
    await prune_minutes(database, ManualClock(NOON))
    kept = [await rows_of(database, table) for table in (UsageMinute, LatencyMinute)]
    async with database.unit_of_work() as session:
        await UsageRepository(session).clear_minutes(Period(NOON - timedelta(days=9), NOON))
    await rebuild(database, ManualClock(NOON))
    assert [await rows_of(database, table) for table in (UsageMinute, LatencyMinute)] == kept
    assert [len(rows) for rows in kept] == [8, 24]


async def rows_of(
    database: Database, table: type[UsageMinute] | type[LatencyMinute]
) -> list[tuple[object, ...]]:
    async with database.reading() as session:
        rows = await session.scalars(across_tenants(table))
        columns = [column.name for column in table.__table__.columns]
        return sorted(tuple(getattr(row, name) for name in columns) for row in rows)


async def test_minutes_are_kept_for_two_days(database: Database) -> None:
    acme, _ = await two_tenants(database)
    await post(database, [facts(acme), facts(acme, started_at=NOON - timedelta(hours=49))])
    await prune_minutes(database, ManualClock(NOON))
    async with database.reading() as session:
        minutes = list(await session.scalars(across_tenants(UsageMinute)))
        latencies = list(await session.scalars(across_tenants(LatencyMinute)))
    assert {row.bucket for row in minutes} == {row.bucket for row in latencies} == {NOON}
    assert {row.measure: row.bin for row in latencies} == {"queue": 1, "ttft": 5, "tpot": 5}


def test_quantile_is_the_edge_of_its_bin() -> None:
    assert quantile_s({0: 50, 4: 49, 12: 1}, 0.5) == 0.005
    assert quantile_s({0: 50, 4: 49, 12: 1}, 0.99) == 0.1
    assert quantile_s({12: 1}, 0.5) == 30.0
    assert quantile_s({}, 0.5) is None


async def sixteen_writers_agree(database: Database) -> None:
    """On the same few rows, with events that several of them bring."""
    acme, globex = await two_tenants(database)
    events = [facts(tenant, completion_tokens=n) for n in range(40) for tenant in (acme, globex)]
    books = books_of(database)

    async def write(offset: int) -> int:
        mine = events[offset:] + events[:offset]
        return sum([await post(database, mine[i : i + 5], books) for i in range(0, 80, 5)])

    new = await asyncio.gather(*(write(5 * n) for n in range(16)))
    assert sum(new) == await num_events(database) == 80
    assert sorted(sums[0] for sums in (await quarters_of(database)).values()) == [40, 40]
    assert len(await entries_of(database)) == 160


async def test_sixteen_writers_on_the_same_rows_agree(database: Database) -> None:
    await sixteen_writers_agree(database)


@pytest.mark.slow
async def test_sixteen_writers_agree_on_postgres(migrated_postgres_url: str) -> None:
    database = Database(migrated_postgres_url, pool_size=16)
    await sixteen_writers_agree(database)
    await database.close()


async def test_a_request_costs_six_statements(database: Database) -> None:
    """The event, its hold, the ledger and three roll-ups, however many requests there are."""
    acme, _ = await two_tenants(database)
    books = books_of(database)
    await post(database, [facts(acme)], books)  # prices are read once a second
    seen: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if not statement.startswith(("BEGIN", "SAVEPOINT", "RELEASE", "SELECT set_config")):
            seen.append(statement.split("(")[0].strip())

    engine = database._engines[-1].sync_engine  # the writer's
    event.listen(engine, "before_cursor_execute", note)
    for number in (1, 100):
        seen.clear()
        await post(database, [facts(acme) for _ in range(number)], books)
        assert len(seen) == 6, seen
    event.remove(engine, "before_cursor_execute", note)


@pytest.mark.slow
async def test_ten_times_the_events_cost_ten_times_the_work(tmp_path: Path) -> None:
    """Statements and rows that SQLite looks at, for the roll-ups and for an export."""
    statements, steps = [], []
    for count in (4_000, 40_000):
        home = tmp_path / str(count)
        home.mkdir()
        url = f"sqlite:///{home / 'books.sqlite3'}"
        upgrade(url)
        database = Database(url, pool_size=1)
        acme, _ = await two_tenants(database)
        tenant = await TenantService(database, SystemClock()).get("acme")
        await database.close()  # so that the next connection counts
        seed_events(str(home / "books.sqlite3"), acme, count)
        after = ManualClock(JUNE + timedelta(days=30))
        exports = ExportService(database, after, home, issuer="Example", region="here")
        with effort_of(database) as effort:
            assert await rebuild(database, after) == count
            written = await exports.write(tenant, Month(2026, 6), "events", "csv")
        assert written.manifest["rows"] == count
        await database.close()
        statements.append(effort.statements)
        steps.append(effort.steps / count)
    assert statements[1] < 2 * statements[0]  # by page and by day, not by event
    assert steps[1] < 1.2 * steps[0]  # a page that began at the month's start would come to 1.47
