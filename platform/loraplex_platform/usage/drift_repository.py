"""Statements that hold the books against each other, and against what engines counted."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants, remove_across_tenants
from loraplex_platform.db.upsert import insert_into, insert_missing
from loraplex_platform.usage.billing_models import LedgerEntry
from loraplex_platform.usage.exact import exact_sum, joined
from loraplex_platform.usage.models import EngineCount, LostWork, UsageEvent, UsageQuarter
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.prices import Sku
from loraplex_platform.usage.rating import Tokens

BASE_OF = "base"  # in the place of an engine's id: what the count began with
EVERYBODY = ""  # in the place of a tenant's id: when the count began
ByTenant = dict[str, int]


class Count(NamedTuple):
    """What an engine says that it has made for a tenant, and how much of it is not finished."""

    engine_id: str
    tenant_id: str
    completion_tokens: int
    open_tokens: int


class Seen(NamedTuple):
    """Requests and tokens, as events or as roll-ups have them."""

    requests: int = 0
    tokens: int = 0


class DriftRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def note(self, counts: Collection[Count], now: datetime) -> None:
        """An engine only counts up: of two that tell of it at once, the later one holds."""
        if not counts:
            return
        rows = [{**count._asdict(), "seen_at": now} for count in sorted(counts)]
        statement = insert_into(self._session, EngineCount)
        told = statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=["engine_id", "tenant_id"],
            set_={name: told[name] for name in ("completion_tokens", "open_tokens", "seen_at")},
            where=told.completion_tokens >= EngineCount.completion_tokens,
        )
        await self._session.execute(statement, rows)

    async def counted(self, live_engine: str | None) -> ByTenant:
        """Completion tokens of all engines, less those of the living one's open sequences."""
        rows = await self._session.scalars(across_tenants(EngineCount))
        found: ByTenant = {}
        for row in rows:
            open_tokens = row.open_tokens if row.engine_id == live_engine else 0
            done = row.completion_tokens - open_tokens
            found[row.tenant_id] = found.get(row.tenant_id, 0) + done
        found.pop(EVERYBODY, None)
        return found

    async def began_at(self) -> datetime | None:
        """When the count of engines began."""
        moment: datetime | None = await self._session.scalar(
            across_tenants(EngineCount)
            .where(EngineCount.engine_id == BASE_OF, EngineCount.tenant_id == EVERYBODY)
            .with_only_columns(EngineCount.seen_at)
        )
        return moment

    async def begin(self, base: ByTenant, live_engine: str | None, now: datetime) -> None:
        """Count anew: engines that are gone are forgotten, and `base` makes up for the past."""
        gone = remove_across_tenants(EngineCount)
        if live_engine is not None:
            gone = gone.where(EngineCount.engine_id != live_engine)
        await self._session.execute(gone)
        rows = [Count(BASE_OF, tenant, tokens, 0) for tenant, tokens in base.items()]
        await self.note([Count(BASE_OF, EVERYBODY, 0, 0), *rows], now)

    async def generated_since(self, moment: datetime) -> ByTenant:
        """Of requests that started since then: completions, lost attempts, and lost lines."""
        quarters = (
            across_tenants(UsageQuarter)
            .where(UsageQuarter.bucket >= moment)
            .group_by(UsageQuarter.tenant_id)
            .with_only_columns(UsageQuarter.tenant_id, func.sum(UsageQuarter.generated_tokens))
        )
        lost = (
            across_tenants(LostWork)
            .where(LostWork.at >= moment)
            .group_by(LostWork.tenant_id)
            .with_only_columns(LostWork.tenant_id, func.sum(LostWork.completion_tokens))
        )
        found: ByTenant = {}
        for statement in (quarters, lost):
            for tenant_id, tokens in await self._session.execute(statement):
                found[tenant_id] = found.get(tenant_id, 0) + int(tokens)
        return found

    async def of_events(self, period: Period) -> dict[str, Seen]:
        start, end = period
        tokens = func.sum(UsageEvent.prompt_tokens + UsageEvent.completion_tokens)
        statement = (
            across_tenants(UsageEvent)
            .where(UsageEvent.started_at >= start, UsageEvent.started_at < end)
            .group_by(UsageEvent.tenant_id)
            .with_only_columns(UsageEvent.tenant_id, func.count(), tokens)
        )
        rows = await self._session.execute(statement)
        return {tenant_id: Seen(int(count), int(sum)) for tenant_id, count, sum in rows}

    async def of_rollups(self, period: Period) -> dict[str, Seen]:
        start, end = period
        tokens = func.sum(
            UsageQuarter.uncached_prompt_tokens
            + UsageQuarter.cached_prompt_tokens
            + UsageQuarter.completion_tokens
            + UsageQuarter.unbilled_tokens
        )
        statement = (
            across_tenants(UsageQuarter)
            .where(UsageQuarter.bucket >= start, UsageQuarter.bucket < end)
            .group_by(UsageQuarter.tenant_id)
            .with_only_columns(UsageQuarter.tenant_id, func.sum(UsageQuarter.requests), tokens)
        )
        rows = await self._session.execute(statement)
        return {tenant_id: Seen(int(count), int(sum)) for tenant_id, count, sum in rows}

    async def sold(self, period: Period) -> list[tuple[str, datetime, Sku, Tokens]]:
        """What each tenant used in each quarter hour, by SKU."""
        start, end = period
        keys: tuple[Any, ...] = (
            UsageQuarter.tenant_id,
            UsageQuarter.bucket,
            UsageQuarter.base_model,
            UsageQuarter.adapter,
            UsageQuarter.tier,
        )
        statement = (
            across_tenants(UsageQuarter)
            .where(UsageQuarter.bucket >= start, UsageQuarter.bucket < end)
            .group_by(*keys)
            .with_only_columns(
                *keys,
                func.sum(UsageQuarter.uncached_prompt_tokens),
                func.sum(UsageQuarter.cached_prompt_tokens),
                func.sum(UsageQuarter.completion_tokens),
            )
        )
        return [
            (tenant_id, bucket, Sku(*sku), Tokens(*map(int, sums)))
            for tenant_id, bucket, *rest in await self._session.execute(statement)
            for sku, sums in [(rest[:3], rest[3:])]
        ]

    async def booked(self, period: Period, tenant_ids: Collection[str]) -> ByTenant:
        """What the ledger says that these tenants owe for usage."""
        start, end = period
        statement = (
            across_tenants(LedgerEntry)
            .where(
                LedgerEntry.tenant_id.in_(tenant_ids),
                LedgerEntry.account == "receivable",
                LedgerEntry.kind == "usage",
                LedgerEntry.occurred_at >= start,
                LedgerEntry.occurred_at < end,
            )
            .group_by(LedgerEntry.tenant_id)
            .with_only_columns(LedgerEntry.tenant_id, *exact_sum(LedgerEntry.pico))
        )
        rows = await self._session.execute(statement)
        return {tenant_id: joined(high, low) for tenant_id, high, low in rows}

    async def add_lost_work(self, rows: Collection[dict[str, Any]]) -> None:
        """What a try made for nobody; a second time changes nothing."""
        if rows:
            await self._session.execute(insert_missing(self._session, LostWork), list(rows))
