"""Now and the last hour, on one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from loraplex_engine.client import EngineClient
from loraplex_engine.messages import TIERS
from loraplex_platform.admission.refusals import Refusals, RefusalService
from loraplex_platform.db.database import Database
from loraplex_platform.db.remembered import Remembered
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.observability.health import Degradable
from loraplex_platform.overview.alerts import (
    Alert,
    Checked,
    of_books,
    of_budgets,
    of_parts,
    of_refusals,
)
from loraplex_platform.overview.live import Live, live_of
from loraplex_platform.overview.names import names_of
from loraplex_platform.overview.spent import SpentToday
from loraplex_platform.usage.activity import ActivityRepository, Latency, TenantShare, TierMinute
from loraplex_platform.usage.periods import floor_to

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
TOP = 10
RATED = 5  # whole minutes that rates are taken over
FRESH_S = 2.0  # how long all who look share one reading


@dataclass(frozen=True, slots=True)
class Minute:
    """One row of the hour; also those in which nothing happened."""

    at: datetime
    requests: Mapping[str, int]  # by tier
    tokens: Mapping[str, int]
    refused: int


@dataclass(frozen=True, slots=True)
class Hour:
    """What the database says; read for all who look at once."""

    minutes: Sequence[Minute]
    latencies: Mapping[str, Mapping[str, Latency]]  # by tier and measure
    top: Sequence[TenantShare]
    refusals: Sequence[Refusals]
    alerts: Sequence[Alert]
    spent_pico: int  # since midnight, UTC

    @property
    def requests(self) -> int:
        return sum(sum(minute.requests.values()) for minute in self.minutes)

    @property
    def refused(self) -> int:
        return sum(minute.refused for minute in self.minutes)

    @property
    def rated(self) -> Sequence[Minute]:
        return self.minutes[-RATED - 1 : -1]

    def requests_per_s(self, tier: str | None = None) -> float:
        """Over the last whole minutes; of all tiers where none is named."""
        return _per_s([minute.requests for minute in self.rated], tier)

    def tokens_per_s(self, tier: str | None = None) -> float:
        return _per_s([minute.tokens for minute in self.rated], tier)


@dataclass(frozen=True, slots=True)
class Overview:
    live: Live | None  # None: the engine is silent
    hour: Hour
    alerts: Sequence[Alert]
    tenants: Mapping[str, str]  # id -> name
    adapters: Mapping[tuple[str, str], str]  # tenant's id, version -> name


class OverviewService:
    def __init__(
        self,
        engine: EngineClient,
        database: Database,
        limiter: Degradable,
        books: Checked,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._database = database
        self._refusals = RefusalService(database, clock)
        self._limiter = limiter
        self._books = books
        self._clock = clock
        self._spent = SpentToday(clock)
        self._hours: Remembered[str, Hour] = Remembered(clock, FRESH_S)

    async def of(self, by: Administrator) -> Overview:
        stats = self._engine.stats
        live = None if stats is None else live_of(stats, by)
        hour = await self._hours.get(by.tenant_id or "", lambda: self._hour(by))
        alerts = of_parts(live, by, is_degraded=self._limiter.is_degraded)
        alerts += of_refusals(
            sum(minute.refused for minute in hour.rated),
            sum(sum(minute.requests.values()) for minute in hour.rated),
        )
        alerts += of_books(self._books, by)
        alerts += hour.alerts
        running = () if live is None else live.adapters[:TOP]
        ids = {row.tenant_id for rows in (hour.top, hour.refusals, running) for row in rows}
        ids |= {alert.tenant_id for alert in alerts if alert.tenant_id is not None}
        versions = {row.version for row in running if row.version is not None}
        async with self._database.reading(by) as session:
            tenants, adapters = await names_of(session, by, ids, versions)
        return Overview(live, hour, alerts, tenants, adapters)

    async def _hour(self, by: Administrator) -> Hour:
        now = self._clock.now()
        since = floor_to(now, MINUTE) - HOUR + MINUTE
        refused = await self._refusals.by_minute(by, since)
        refusals = await self._refusals.totals(by, HOUR, limit=TOP)
        async with self._database.reading(by) as session:
            activity = ActivityRepository(session, by, since)
            minutes = await activity.minutes()
            return Hour(
                _rows(since, minutes, refused),
                _by_tier(await activity.latencies()),
                await activity.top_tenants(TOP),
                refusals,
                await of_budgets(session, by, now),
                await self._spent.pico(session, by),
            )


def _per_s(counts: Sequence[Mapping[str, int]], tier: str | None) -> float:
    tiers = TIERS if tier is None else (tier,)
    return sum(count[tier] for count in counts for tier in tiers) / (60 * len(counts))


def _by_tier(latencies: Sequence[Latency]) -> dict[str, dict[str, Latency]]:
    tiers = [tier for tier in TIERS if any(row.tier == tier for row in latencies)]
    return {tier: {row.measure: row for row in latencies if row.tier == tier} for tier in tiers}


def _rows(
    since: datetime, minutes: Sequence[TierMinute], refused: Mapping[datetime, int]
) -> list[Minute]:
    seen = {(row.bucket, row.tier): row for row in minutes}
    rows = []
    for i in range(60):
        at = since + i * MINUTE
        own = {tier: seen[at, tier] for tier in TIERS if (at, tier) in seen}
        tokens: dict[str, int] = {t: own[t].tokens if t in own else 0 for t in TIERS}
        requests: dict[str, int] = {t: own[t].requests if t in own else 0 for t in TIERS}
        rows.append(Minute(at, requests, tokens, refused.get(at, 0)))
    return rows
