"""Statements on usage events and on the sums that are made of them."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import pairwise
from typing import Literal, NamedTuple

from sqlalchemy import and_, case, func, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants, remove_across_tenants
from loraplex_platform.db.upsert import add_up, insert_missing, keep_writers_out
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.models import LatencyMinute, UsageEvent, UsageMinute, UsageQuarter
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.prices import Sku
from loraplex_platform.usage.rating import Tokens
from loraplex_platform.usage.rollups import Sums

COLUMNS = [field.name for field in fields(UsageFacts)]
PAGE = 2_000  # events read at once
Cursor = tuple[datetime, str]  # an event's start and id
Level = Literal["key", "project", "tenant"]


class Total(NamedTuple):
    """What was used of one SKU, under the name that clients gave it."""

    model: str
    sku: Sku
    tokens: Tokens


class UsageRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add_new(self, facts: Sequence[UsageFacts]) -> list[UsageFacts]:
        """Write those that are not there yet; returns them."""
        if not facts:
            return []
        statement = insert_missing(self._session, UsageEvent, UsageEvent.request_id)
        rows = [{name: getattr(fact, name) for name in COLUMNS} for fact in facts]
        ids = await self._session.scalars(statement, rows)
        new = set(ids)
        return list({fact.request_id: fact for fact in facts if fact.request_id in new}.values())

    async def add_up(self, sums: Sums) -> None:
        await self.add_up_quarters(sums)
        await self.add_up_minutes(sums)

    async def add_up_quarters(self, sums: Sums) -> None:
        await add_up(self._session, UsageQuarter, sums.quarters)

    async def add_up_minutes(self, sums: Sums) -> None:
        await add_up(self._session, UsageMinute, sums.minutes)
        await add_up(self._session, LatencyMinute, sums.latencies)

    async def pages(
        self,
        period: Period | None = None,
        tenant_id: str | None = None,
        *,
        after: Cursor | None = None,
    ) -> AsyncIterator[Sequence[UsageEvent]]:
        """Events that started within the period by (start, id), a page at a time."""
        order = (UsageEvent.started_at, UsageEvent.request_id)
        statement = across_tenants(UsageEvent).order_by(*order).limit(PAGE)
        if tenant_id is not None:
            statement = statement.where(UsageEvent.tenant_id == tenant_id)
        if period is not None:
            statement = statement.where(UsageEvent.started_at < period.end)
        # One lower bound only: given two, SQLite begins each page at the period's start.
        first = statement if period is None else statement.where(order[0] >= period.start)
        following = first if after is None else statement.where(tuple_(*order) > after)
        while page := (await self._session.scalars(following)).all():
            yield page
            last = (page[-1].started_at, page[-1].request_id)
            following = statement.where(tuple_(*order) > last)
            self._session.expunge_all()

    async def clear_quarters(self, period: Period) -> None:
        """And let nobody else add to them until they are made anew."""
        await keep_writers_out(self._session, UsageQuarter)
        start, end = period
        await self._session.execute(
            remove_across_tenants(UsageQuarter).where(
                UsageQuarter.bucket >= start, UsageQuarter.bucket < end
            )
        )

    async def clear_minutes(self, period: Period) -> None:
        """The same for minutes."""
        await keep_writers_out(self._session, UsageMinute, LatencyMinute)
        start, end = period
        for table in (UsageMinute, LatencyMinute):
            statement = remove_across_tenants(table)
            await self._session.execute(statement.where(table.bucket >= start, table.bucket < end))

    async def span(self) -> Period | None:
        """From the first event's start to the last one's; None without events."""
        started = UsageEvent.started_at
        ends = across_tenants(UsageEvent).with_only_columns(func.min(started), func.max(started))
        first, last = (await self._session.execute(ends)).one()
        return None if first is None else Period(first, last)

    async def num_requests(self, tenant_id: str, period: Period) -> int:
        """Of one tenant; the period starts and ends with quarter hours."""
        start, end = period
        statement = across_tenants(UsageQuarter).where(
            UsageQuarter.tenant_id == tenant_id,
            UsageQuarter.bucket >= start,
            UsageQuarter.bucket < end,
        )
        requests = statement.with_only_columns(func.sum(UsageQuarter.requests))
        return int(await self._session.scalar(requests) or 0)

    async def quarters(self, tenant_id: str, period: Period) -> Sequence[UsageQuarter]:
        """Of one tenant, oldest first; the period starts and ends with quarter hours."""
        start, end = period
        statement = across_tenants(UsageQuarter).where(
            UsageQuarter.tenant_id == tenant_id,
            UsageQuarter.bucket >= start,
            UsageQuarter.bucket < end,
        )
        return (await self._session.scalars(statement.order_by(UsageQuarter.bucket))).all()

    async def totals(
        self,
        tenant_id: str,
        periods: Sequence[Period],
        level: Level = "tenant",
        subject: str | None = None,
    ) -> list[list[Total]]:
        """Of one tenant, or one of its projects or keys, by model and SKU; for each period.

        Periods start and end with quarter hours, and none overlaps another.
        """
        assert all(a.end <= b.start for a, b in pairwise(sorted(periods))), "a row counts once"
        found: list[list[Total]] = [[] for _ in periods]
        if not periods:
            return found
        bucket = UsageQuarter.bucket
        statement = across_tenants(UsageQuarter).where(
            UsageQuarter.tenant_id == tenant_id,
            bucket >= min(period.start for period in periods),
            bucket < max(period.end for period in periods),
        )
        place = case(
            *((and_(bucket >= start, bucket < end), i) for i, (start, end) in enumerate(periods))
        )
        if level != "tenant":
            column = UsageQuarter.project_id if level == "project" else UsageQuarter.key_id
            statement = statement.where(column == subject)
        sold_as = (
            UsageQuarter.model,
            UsageQuarter.base_model,
            UsageQuarter.adapter,
            UsageQuarter.tier,
        )
        sums = (
            func.sum(UsageQuarter.uncached_prompt_tokens),
            func.sum(UsageQuarter.cached_prompt_tokens),
            func.sum(UsageQuarter.completion_tokens),
        )
        grouped = statement.with_only_columns(place, *sold_as, *sums).group_by(place, *sold_as)
        rows = await self._session.execute(grouped.order_by(*sold_as))
        for i, model, base, adapter, tier, *counts in rows:
            if i is not None:  # between two of the periods
                total = Total(model, Sku(base, adapter, tier), Tokens(*map(int, counts)))
                found[i].append(total)
        return found

    async def sums(
        self,
        table: type[UsageQuarter] | type[UsageMinute],
        period: Period,
        tenant_id: str | None,
    ) -> AsyncIterator[UsageQuarter | UsageMinute]:
        """Of one tenant or of all, a page in memory at a time."""
        start, end = period
        statement = across_tenants(table).where(table.bucket >= start, table.bucket < end)
        if tenant_id is not None:
            statement = statement.where(table.tenant_id == tenant_id)
        rows = await self._session.stream_scalars(statement.execution_options(yield_per=PAGE))
        async for row in rows:
            yield row

    async def latencies(
        self, period: Period, tenant_id: str | None = None
    ) -> Sequence[LatencyMinute]:
        start, end = period
        statement = across_tenants(LatencyMinute).where(
            LatencyMinute.bucket >= start, LatencyMinute.bucket < end
        )
        if tenant_id is not None:
            statement = statement.where(LatencyMinute.tenant_id == tenant_id)
        return (await self._session.scalars(statement.order_by(LatencyMinute.bucket))).all()

    async def tokens_since(
        self, tenant_id: str, since: datetime, *, project_id: str | None, key_id: str | None
    ) -> int:
        """Prompt and completion tokens of requests that started since then."""
        statement = across_tenants(UsageEvent).where(
            UsageEvent.tenant_id == tenant_id,
            UsageEvent.ended_at >= since,  # the index
            UsageEvent.started_at >= since,
        )
        if project_id is not None:
            statement = statement.where(UsageEvent.project_id == project_id)
        if key_id is not None:
            statement = statement.where(UsageEvent.key_id == key_id)
        tokens = func.sum(UsageEvent.prompt_tokens + UsageEvent.completion_tokens)
        return int(await self._session.scalar(statement.with_only_columns(tokens)) or 0)
