"""Holds events, roll-ups, rated lines, ledger and engine counters against each other.

Events and roll-ups, and roll-ups times prices and ledger, agree exactly or something is broken.
Engines count for themselves: a killed one counts up to its last published statistics, so that what it
delivered after them makes the drift negative for as long as the count runs (COUNT_FOR).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Literal, NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Gauge
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_engine.client import EngineClient
from loraplex_engine.messages import EngineStats
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.usage.drift_repository import ByTenant, Count, DriftRepository, Seen
from loraplex_platform.usage.money import text_of
from loraplex_platform.usage.periods import BUCKET, Period, floor_to
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.rating import cost_pico

log = structlog.get_logger(__name__)
Between = Literal["requests", "tokens", "money", "engine"]
LISTEN_EVERY_S = 0.5  # as often as an engine speaks
NOTE_EVERY_S = 10.0
CHECK_EVERY_S = 60.0
LOOK_BACK = timedelta(hours=1)
COUNT_FOR = timedelta(days=7)
# Of the engine's drift: what is on its way from it to the books, and what dead ones did not publish.
TOLERATED_SHARE, TOLERATED_TOKENS = 0.001, 2_000


class Drift(NamedTuple):
    """What one side has more than the other: requests, tokens, or pico-dollars."""

    between: Between
    tenant_id: str
    amount: int


class DriftMetrics:
    """Set by whoever checked last: all processes look at the same books."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tokens = Gauge(
            "loraplex_metering_drift_tokens",
            "Tokens that engines counted and events lack (negative: the other way round).",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self._books = Gauge(
            "loraplex_books_drift",
            "Tenants whose events, roll-ups and ledger disagree.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def set(self, drifts: list[Drift]) -> None:
        self._tokens.set(sum(drift.amount for drift in drifts if drift.between == "engine"))
        self._books.set(len({drift.tenant_id for drift in drifts if drift.between != "engine"}))


class Reconciliation:
    """Listens to the engine, and checks the books once a minute."""

    def __init__(
        self, database: Database, engine: EngineClient, clock: Clock, metrics: DriftMetrics
    ) -> None:
        self._database = database
        self._engine = engine
        self._clock = clock
        self._metrics = metrics
        self._last: EngineStats | None = None
        self._suspects: set[tuple[Between, str]] = set()
        self.alarms: Sequence[Drift] = ()  # what disagreed twice in a row

    @property
    def is_drifting(self) -> bool:
        return bool(self.alarms)

    async def run(self) -> None:
        """Until it is cancelled; what a failing database misses is caught up with."""
        noted_s = checked_s = self._clock.monotonic()
        while True:
            await asyncio.sleep(LISTEN_EVERY_S)
            now_s = self._clock.monotonic()
            try:
                if self.listen() or now_s >= noted_s + NOTE_EVERY_S:
                    await self.note()
                    noted_s = now_s
                if now_s >= checked_s + CHECK_EVERY_S:
                    await self.check()
                    checked_s = now_s
            except SQLAlchemyError as error:
                log.warning("books_not_checked", exc_info=error)

    def listen(self) -> bool:
        """Whether the engine that was heard last is gone: its last word must be kept."""
        stats, last = self._engine.stats, self._last
        if last is not None and (stats is None or stats.engine_id != last.engine_id):
            return True
        self._last = stats
        return False

    async def note(self) -> None:
        """Keep what was heard last, of the engine that is there and of the one before it."""
        before, self._last = self._last, self._engine.stats
        heard = {stats.engine_id: stats for stats in (before, self._last) if stats is not None}
        counts = [count for stats in heard.values() for count in counts_of(stats)]
        async with self._database.unit_of_work() as session:
            await DriftRepository(session).note(counts, self._clock.now())

    async def check(self) -> list[Drift]:
        """What disagrees now. Two times in a row, it is an alarm."""
        await self._begin_if_due()
        await self.note()
        now = self._clock.now()
        async with self._database.snapshot() as session:
            start = floor_to(now - LOOK_BACK, BUCKET)
            drifts = [drift async for drift in _of_books(session, Period(start, now + BUCKET))]
            drifts += await self._of_engine(session)
        self._metrics.set(drifts)
        self.alarms = [d for d in drifts if (d.between, d.tenant_id) in self._suspects]
        for drift in self.alarms:
            amount = text_of(drift.amount) if drift.between == "money" else drift.amount
            log.error("drift", between=drift.between, tenant=drift.tenant_id, amount=amount)
        self._suspects = {(drift.between, drift.tenant_id) for drift in drifts}
        return drifts

    async def _of_engine(self, session: AsyncSession) -> list[Drift]:
        books = DriftRepository(session)
        began_at = await books.began_at()
        if began_at is None:
            return []
        counted = await books.counted(self._live)
        written = await books.generated_since(floor_to(began_at, BUCKET) - LOOK_BACK)
        drifts = []
        for tenant_id in sorted(counted.keys() | written.keys()):
            amount = counted.get(tenant_id, 0) - written.get(tenant_id, 0)
            tolerated = max(TOLERATED_TOKENS, TOLERATED_SHARE * written.get(tenant_id, 0))
            if abs(amount) > tolerated:
                drifts.append(Drift("engine", tenant_id, amount))
        return drifts

    async def _begin_if_due(self) -> None:
        """The count of engines begins anew each week, from where the books are then."""
        now = self._clock.now()
        async with self._database.unit_of_work() as session:
            books = DriftRepository(session)
            began_at = await books.began_at()
            if began_at is not None and now < began_at + COUNT_FOR:
                return
            stats = self._engine.stats
            base: ByTenant = await books.generated_since(floor_to(now, BUCKET) - LOOK_BACK)
            for count in () if stats is None else counts_of(stats):
                done = count.completion_tokens - count.open_tokens
                base[count.tenant_id] = base.get(count.tenant_id, 0) - done
            await books.begin(base, None if stats is None else stats.engine_id, now)

    @property
    def _live(self) -> str | None:
        return None if self._last is None else self._last.engine_id


async def _of_books(session: AsyncSession, period: Period) -> AsyncIterator[Drift]:
    books, prices = DriftRepository(session), PriceRepository(session)
    events, rollups = await books.of_events(period), await books.of_rollups(period)
    for tenant_id in sorted(events.keys() | rollups.keys()):
        a, b = events.get(tenant_id, Seen()), rollups.get(tenant_id, Seen())
        if a.requests != b.requests:
            yield Drift("requests", tenant_id, a.requests - b.requests)
        if a.tokens != b.tokens:
            yield Drift("tokens", tenant_id, a.tokens - b.tokens)
    rated: ByTenant = {}
    tariffs = {tenant_id: await prices.tariffs(tenant_id) for tenant_id in rollups}
    for tenant_id, bucket, sku, tokens in await books.sold(period):
        pico = cost_pico(sku, tokens, tariffs[tenant_id].at(bucket))
        rated[tenant_id] = rated.get(tenant_id, 0) + pico
    booked = await books.booked(period, tariffs)
    for tenant_id in sorted(rated.keys() | booked.keys()):
        if amount := rated.get(tenant_id, 0) - booked.get(tenant_id, 0):
            yield Drift("money", tenant_id, amount)


def counts_of(stats: EngineStats) -> list[Count]:
    """By tenant; the engine has a sequence's tokens before the sequence is at its end."""
    open_tokens: ByTenant = {}
    for sequence in stats.sequences:
        before = open_tokens.get(sequence.tenant, 0)
        open_tokens[sequence.tenant] = before + sequence.completion_tokens
    return [
        Count(stats.engine_id, tenant_id, tokens.completion, open_tokens.get(tenant_id, 0))
        for tenant_id, tokens in stats.tokens_by_tenant
    ]
