"""Facts become sums and money, in the transaction that writes the facts."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import groupby

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.holds import HoldRepository, Used, hold_id_of
from loraplex_platform.usage.ledger import Transaction, charge
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.periods import BUCKET, EPOCH, Period, floor_to
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.rating import cost_pico, sku_of, tokens_of
from loraplex_platform.usage.repository import UsageRepository
from loraplex_platform.usage.rollups import MINUTES_KEPT, Event, sums_of

REBUILD_STEP = timedelta(days=1)


class Books:
    """What follows from events: roll-ups and ledger entries."""

    def __init__(self, prices: PriceService, clock: Clock) -> None:
        self._prices = prices
        self._clock = clock

    async def post(self, session: AsyncSession, facts: Sequence[UsageFacts]) -> int:
        """Write events with all that follows from them; returns how many were new.

        An event that is there already changes nothing, in whatever order and however often it comes.
        """
        usage, now = UsageRepository(session), self._clock.now()
        new = await usage.add_new(facts)
        if new:
            rated = await self._rated(session, new)
            used = {
                hold_id_of(event): Used(event.prompt_tokens + event.completion_tokens, pico)
                for event, pico in rated
            }
            await HoldRepository(session).release(used, now)
            await LedgerRepository(session).post((charge_of(*each) for each in rated), now)
            await usage.add_up(sums_of(new))  # last: these rows are shared with other requests
        return len(new)

    async def _rated(
        self, session: AsyncSession, events: Iterable[Event]
    ) -> list[tuple[Event, int]]:
        """At the prices of the moment when the request started, whenever it is rated."""
        by_tenant = groupby(sorted(events, key=_tenant), key=_tenant)
        return [
            (event, cost_pico(sku_of(event), tokens_of(event), tariffs.at(event.started_at)))
            for tenant_id, of_tenant in by_tenant
            for tariffs in [await self._prices.tariffs(session, tenant_id)]
            for event in of_tenant
        ]


def _tenant(event: Event) -> str:
    return event.tenant_id


def charge_of(event: Event, pico: int) -> Transaction:
    return charge(f"use:{event.request_id}", event.tenant_id, "usage", event.started_at, pico)


async def rebuild(database: Database, clock: Clock) -> int:
    """Make the roll-ups anew from events, a step at a time; returns the events read.

    Quarter hours of all time, minutes of the two days that they are kept.
    """
    async with database.reading() as session:
        span = await UsageRepository(session).span()
    if span is None:
        return 0
    count = 0
    for period in _steps(span, REBUILD_STEP):
        async with database.unit_of_work() as session:
            usage = UsageRepository(session)
            await usage.clear_quarters(period)
            async for page in usage.pages(period):
                count += len(page)
                await usage.add_up_quarters(sums_of(page))
    await prune_minutes(database, clock)
    recent = Period(max(span.start, clock.now() - MINUTES_KEPT), span.end)
    for period in _steps(recent, BUCKET):
        async with database.unit_of_work() as session:
            usage = UsageRepository(session)
            await usage.clear_minutes(period)
            async for page in usage.pages(period):
                await usage.add_up_minutes(sums_of(page))
    return count


def _steps(span: Period, step: timedelta) -> Iterator[Period]:
    """Whole steps that cover the span, its end included."""
    start = floor_to(span.start, step)
    while start <= span.end:
        yield Period(start, start + step)
        start += step


async def prune_minutes(database: Database, clock: Clock) -> None:
    """Forget minutes that nobody looks at any more."""
    async with database.unit_of_work() as session:
        await UsageRepository(session).clear_minutes(Period(EPOCH, clock.now() - MINUTES_KEPT))
