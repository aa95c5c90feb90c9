"""Now and the last hour, on one page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from loraplex_engine.client import EngineClient
from loraplex_engine.messages import TIERS
from loraplex_platform.admission.refusals import Refusals, RefusalService
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.overview.live import Live, live_of
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.activity import ActivityRepository, Latency, TenantShare, TierMinute
from loraplex_platform.usage.periods import floor_to

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
TOP = 10


@dataclass(frozen=True, slots=True)
class Minute:
    """One row of the hour; also those in which nothing happened."""

    at: datetime
    requests: int
    tokens: Mapping[str, int]  # by tier
    refused: int


@dataclass(frozen=True, slots=True)
class Overview:
    live: Live | None  # None: the engine is silent
    minutes: Sequence[Minute]
    latencies: Mapping[str, Mapping[str, Latency]]  # by tier and measure
    top: Sequence[TenantShare]
    refusals: Sequence[Refusals]
    tenants: Mapping[str, str]  # id -> name
    adapters: Mapping[tuple[str, str], str]  # tenant's id, version -> name

    @property
    def requests(self) -> int:
        return sum(minute.requests for minute in self.minutes)

    @property
    def refused(self) -> int:
        return sum(minute.refused for minute in self.minutes)

    @property
    def tokens_per_s(self) -> float:
        """Over the last five whole minutes."""
        last = self.minutes[-6:-1]
        return sum(sum(minute.tokens.values()) for minute in last) / (60 * len(last))


class OverviewService:
    def __init__(
        self, engine: EngineClient, database: Database, refusals: RefusalService, clock: Clock
    ) -> None:
        self._engine = engine
        self._database = database
        self._refusals = refusals
        self._clock = clock

    async def of(self, by: Administrator) -> Overview:
        now = floor_to(self._clock.now(), MINUTE)
        since = now - HOUR + MINUTE
        stats = self._engine.stats
        live = None if stats is None else live_of(stats, by)
        refused = await self._refusals.by_minute(by, since)
        refusals = await self._refusals.totals(by, HOUR, limit=TOP)
        async with self._database.reading(by) as session:
            activity = ActivityRepository(session, by, since)
            minutes = await activity.minutes()
            latencies = _by_tier(await activity.latencies())
            top = await activity.top_tenants(TOP)
            running = () if live is None else live.adapters
            ids = {row.tenant_id for row in top} | {row.tenant_id for row in refusals}
            ids |= {row.tenant_id for row in running}
            tenants = await TenantRepository(session).names(by, ids)
            versions = {row.version for row in running if row.version is not None}
            adapters = await AdapterRepository(session).names(by, versions)
        return Overview(
            live, _rows(since, minutes, refused), latencies, top, refusals, tenants, adapters
        )


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
        requests = sum(row.requests for row in own.values())
        rows.append(Minute(at, requests, tokens, refused.get(at, 0)))
    return rows
