"""Events, roll-ups, money and the engines' own counters are held against each other."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from tests.platform_stand import letter_engine
from tests.usage_stand import NOON, books_of, facts, post, two_tenants

from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import EngineStats, SequenceStats, TokenCounters
from loraplex_platform.db.database import Database
from loraplex_platform.db.scope import across_tenants, change_across_tenants
from loraplex_platform.db.upsert import insert_into
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.models import LedgerEntry, UsageQuarter
from loraplex_platform.usage.drift_repository import DriftRepository
from loraplex_platform.usage.reconciliation import Drift, DriftMetrics, Reconciliation

ONE = letter_engine().stats
MANY = 5_000  # more than is tolerated


@dataclass(slots=True)
class Talking:
    """An engine of which only the statistics are heard."""

    stats: EngineStats | None = ONE

    def says(self, tenant: str, completion: int, unfinished: int = 0, engine: str = "e1") -> None:
        sequence = SequenceStats(
            "r", tenant, "standard", None, "decoding", None, 1, unfinished, 0.0, None
        )
        self.stats = replace(
            ONE,
            engine_id=engine,
            sequences=(sequence,),
            tokens_by_tenant=((tenant, TokenCounters(completion=completion)),),
        )


@dataclass(slots=True)
class Stand:
    """A reconciliation that has begun, with nothing to find."""

    database: Database
    tenant: str
    engine: Talking = field(default_factory=Talking)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOON))
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    checks: Reconciliation = field(init=False)

    def __post_init__(self) -> None:
        metrics = DriftMetrics(self.registry)
        self.checks = Reconciliation(self.database, self.engine, self.clock, metrics)

    async def post(self, completion: int, **more: object) -> None:
        made = [facts(self.tenant, completion_tokens=completion, **more)]
        await post(self.database, made, books_of(self.database, self.clock))

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)


@pytest.fixture
async def stand(database: Database) -> Stand:
    acme, _ = await two_tenants(database)
    stand = Stand(database, acme)
    await stand.post(7)  # before anybody counted
    assert await stand.checks.check() == []
    return stand


async def test_what_engine_and_events_tell_agrees(stand: Stand) -> None:
    await stand.post(MANY)
    stand.engine.says(stand.tenant, MANY + 300, unfinished=300)
    assert await stand.checks.check() == []
    assert stand.metric("loraplex_metering_drift_tokens") == 0


async def test_tokens_that_no_event_tells_of_are_an_alarm_the_second_time(stand: Stand) -> None:
    stand.engine.says(stand.tenant, MANY)
    assert await stand.checks.check() == [Drift("engine", stand.tenant, MANY)]
    assert not stand.checks.is_drifting  # an event may be on its way
    assert await stand.checks.check() == [Drift("engine", stand.tenant, MANY)]
    assert stand.checks.is_drifting
    assert stand.metric("loraplex_metering_drift_tokens") == MANY
    await stand.post(MANY)
    assert await stand.checks.check() == []
    assert not stand.checks.is_drifting


async def test_a_killed_engine_counts_up_to_its_last_word(stand: Stand) -> None:
    stand.engine.says(stand.tenant, MANY, unfinished=400)
    await stand.checks.note()
    assert not stand.checks.listen()
    stand.engine.stats = None
    assert stand.checks.listen()
    await stand.checks.note()
    await stand.post(MANY, outcome="error", error_code="unavailable")
    stand.engine.says(stand.tenant, 0, engine="e2")
    await stand.checks.note()
    assert await stand.checks.check() == []
    stand.engine.says(stand.tenant, MANY, engine="e2")
    assert await stand.checks.check() == [Drift("engine", stand.tenant, MANY)]


async def test_lost_attempts_and_lost_lines_are_explained(stand: Stand) -> None:
    stand.engine.says(stand.tenant, 3 * MANY)
    await stand.post(MANY, discarded_tokens=MANY)
    row = {"id": "line#1", "tenant_id": stand.tenant, "at": NOON, "completion_tokens": MANY}
    async with stand.database.unit_of_work() as session:
        await DriftRepository(session).add_lost_work([row, row])
    assert await stand.checks.check() == []


async def test_an_older_word_of_an_engine_is_not_believed(stand: Stand) -> None:
    stand.engine.says(stand.tenant, MANY)
    await stand.post(MANY)
    await stand.checks.check()
    other = Stand(stand.database, stand.tenant)
    other.engine.says(stand.tenant, MANY - 3_000)
    assert await other.checks.check() == []


async def test_the_count_begins_anew_each_week(stand: Stand) -> None:
    stand.engine.says(stand.tenant, MANY)
    assert len(await stand.checks.check()) == 1
    stand.clock.advance(timedelta(days=7).total_seconds())
    assert await stand.checks.check() == []
    stand.engine.says(stand.tenant, 2 * MANY)
    assert await stand.checks.check() == [Drift("engine", stand.tenant, MANY)]


async def test_a_changed_roll_up_is_found(stand: Stand) -> None:
    async with stand.database.unit_of_work() as session:
        await session.execute(
            change_across_tenants(UsageQuarter).values(
                requests=UsageQuarter.requests + 1, completion_tokens=8
            )
        )
    found = await stand.checks.check()
    assert found == [
        Drift("requests", stand.tenant, -1),
        Drift("tokens", stand.tenant, -1),
        Drift("money", stand.tenant, 400_000),
    ]
    assert stand.metric("loraplex_books_drift") == 1


async def test_a_ledger_entry_that_nobody_used_is_found(stand: Stand) -> None:
    async with stand.database.unit_of_work() as session:
        [entry] = list(
            await session.scalars(
                across_tenants(LedgerEntry).where(LedgerEntry.account == "receivable")
            )
        )
        columns = {c.name: getattr(entry, c.name) for c in LedgerEntry.__table__.columns}
        twin = columns | {"transaction_id": "use:twin", "pico": 11}
        await session.execute(insert_into(session, LedgerEntry).values(twin))
    assert await stand.checks.check() == [Drift("money", stand.tenant, -11)]


@pytest.mark.slow
async def test_books_agree_on_postgres(migrated_postgres_url: str) -> None:
    database = Database(migrated_postgres_url)
    acme, _ = await two_tenants(database)
    stand = Stand(database, acme)
    assert await stand.checks.check() == []
    await stand.post(MANY)
    stand.engine.says(acme, 3 * MANY)
    assert await stand.checks.check() == [Drift("engine", acme, 2 * MANY)]
    await database.close()


async def test_readyz_tells_of_drift_and_stays_green(
    app: FastAPI, engine: FakeEngine, make_app: Callable[..., FastAPI]
) -> None:
    app.state.health._books.alarms = [Drift("tokens", "ten_1", 5)]
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/readyz")
        exposed = (await http.get("/metrics")).text
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["checks"]["metering"] == "drift"
    assert "loraplex_metering_drift_tokens 0.0" in exposed
