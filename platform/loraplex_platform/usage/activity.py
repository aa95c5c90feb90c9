"""What the last minutes were like: tokens by tier, latencies, and who took most."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import over, visible_to
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.usage.models import LatencyMinute, UsageMinute
from loraplex_platform.usage.rollups import quantile_s

TOKENS = (
    UsageMinute.uncached_prompt_tokens
    + UsageMinute.cached_prompt_tokens
    + UsageMinute.completion_tokens
    + UsageMinute.unbilled_tokens
)


class TierMinute(NamedTuple):
    """What one tier did within one minute."""

    bucket: datetime
    tier: str
    requests: int
    tokens: int


class Latency(NamedTuple):
    """Upper edges of the bins that hold the median and the 95th of a hundred."""

    tier: str
    measure: str
    requests: int
    p50_s: float | None
    p95_s: float | None


class TenantShare(NamedTuple):
    """What a tenant took."""

    tenant_id: str
    requests: int
    tokens: int


class ActivityRepository:
    def __init__(self, session: AsyncSession, by: Administrator, since: datetime) -> None:
        self._session = session
        self._by = by
        self._since = since

    async def minutes(self) -> Sequence[TierMinute]:
        """Oldest first; a minute in which nothing happened is absent."""
        statement = (
            visible_to(self._by, UsageMinute)
            .where(UsageMinute.bucket >= self._since)
            .group_by(UsageMinute.bucket, UsageMinute.tier)
            .order_by(UsageMinute.bucket, UsageMinute.tier)
            .with_only_columns(
                UsageMinute.bucket,
                UsageMinute.tier,
                func.sum(UsageMinute.requests),
                func.sum(TOKENS),
            )
        )
        rows = await self._session.execute(statement)
        return [TierMinute(bucket, tier, int(n), int(tokens)) for bucket, tier, n, tokens in rows]

    async def latencies(self) -> Sequence[Latency]:
        """For each tier and measure that was seen."""
        columns = (LatencyMinute.tier, LatencyMinute.measure, LatencyMinute.bin)
        statement = (
            visible_to(self._by, LatencyMinute)
            .where(LatencyMinute.bucket >= self._since)
            .group_by(*columns)
            .with_only_columns(*columns, func.sum(LatencyMinute.count))
        )
        bins: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for tier, measure, bin, count in await self._session.execute(statement):
            bins[tier, measure][bin] = int(count)
        return [
            Latency(*key, sum(of.values()), quantile_s(of, 0.5), quantile_s(of, 0.95))
            for key, of in sorted(bins.items())
        ]

    async def top_tenants(self, limit: int) -> Sequence[TenantShare]:
        scoped = (
            visible_to(self._by, UsageMinute)
            .where(UsageMinute.bucket >= self._since)
            .with_only_columns(UsageMinute.tenant_id, UsageMinute.requests, TOKENS.label("tokens"))
        )  # materialized, or SQLite walks all minutes in the tenants' order
        recent = scoped.cte("recent").prefix_with("MATERIALIZED")
        tokens = func.sum(recent.c.tokens)
        statement = (
            over(scoped, recent.c.tenant_id, func.sum(recent.c.requests), tokens)
            .group_by(recent.c.tenant_id)
            .order_by(tokens.desc())
            .limit(limit)
        )
        rows = await self._session.execute(statement)
        return [TenantShare(tenant, int(n), int(took)) for tenant, n, took in rows]
