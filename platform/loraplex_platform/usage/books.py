"""Facts become sums and money, in the transaction that writes the facts."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.ledger import Transaction, charge
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.periods import BUCKET, Period, floor_to
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.prices import Tariffs
from loraplex_platform.usage.rating import cost_pico, sku_of, tokens_of
from loraplex_platform.usage.repository import UsageRepository
from loraplex_platform.usage.rollups import MINUTES_KEPT, Event, sums_of

REBUILD_STEP = BUCKET * 4 * 24


class Books:
    """What follows from events: roll-ups and ledger entries."""

    def __init__(self, prices: PriceService, clock: Clock) -> None:
        self._prices = prices
        self._clock = clock

    async def post(self, session: AsyncSession, facts: Sequence[UsageFacts]) -> int:
        """Write events with all that follows from them; returns how many were new.

        An event that is there already changes nothing, in whatever order and however often it comes.
        """
        usage = UsageRepository(session)
        new = await usage.add_new(facts)
        if new:
            await LedgerRepository(session).post(
                await self._transactions(session, new), self._clock.now()
            )
            await usage.add_up(sums_of(new))  # last: these rows are shared with other requests
        return len(new)

    async def _transactions(
        self, session: AsyncSession, events: Iterable[Event]
    ) -> list[Transaction]:
        by_tenant = groupby(sorted(events, key=_tenant), key=_tenant)
        return [
            transaction_of(event, tariffs)
            for tenant_id, of_tenant in by_tenant
            for tariffs in [await self._prices.tariffs(session, tenant_id)]
            for event in of_tenant
        ]


def _tenant(event: Event) -> str:
    return event.tenant_id


def transaction_of(event: Event, tariffs: Tariffs) -> Transaction:
    """At the prices of the moment when the request started, whenever it is rated."""
    pico = cost_pico(sku_of(event), tokens_of(event), tariffs.at(event.started_at))
    return charge(f"use:{event.request_id}", event.tenant_id, "usage", event.started_at, pico)


async def rebuild_quarters(database: Database) -> int:
    """Make the quarter hours anew from events, a day at a time; returns the events read."""
    async with database.reading() as session:
        span = await UsageRepository(session).span()
    count = 0
    day = None if span is None else floor_to(span.start, REBUILD_STEP)
    while span is not None and day is not None and day <= span.end:
        period = Period(day, day + REBUILD_STEP)
        async with database.unit_of_work() as session:
            usage = UsageRepository(session)
            await usage.clear_quarters(period)
            async for page in usage.pages(period):
                count += len(page)
                await usage.add_up_quarters(sums_of(page))
        day += REBUILD_STEP
    return count


async def prune_minutes(database: Database, clock: Clock) -> None:
    """Forget minutes that nobody looks at any more."""
    async with database.unit_of_work() as session:
        await UsageRepository(session).clear_minutes_before(clock.now() - MINUTES_KEPT)
