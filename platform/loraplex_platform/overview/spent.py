"""What the day has cost so far, of one tenant or of all: roll-ups times prices."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import case, func
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import visible_to
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.usage.models import UsageQuarter
from loraplex_platform.usage.periods import BUCKET, UTC_ZONE, Period, floor_to, period_of
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.prices import ANY_ADAPTER, BASE, PriceBook, Sku, Tariffs
from loraplex_platform.usage.rating import Tokens, cost_pico

SETTLED = timedelta(hours=1)  # quarters older than this are summed up once


class SpentToday:
    """The UTC day. Settled quarter hours of the whole platform are remembered, not read again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._settled: dict[datetime, int] = {}  # by quarter, of all tenants

    async def pico(self, session: AsyncSession, by: Administrator) -> int:
        now, books = self._clock.now(), await PriceRepository(session).books()
        today = period_of(now, "day", UTC_ZONE)
        if by.tenant_id is not None:
            return sum((await _by_quarter(session, by, today, books)).values())
        settled_until = max(today.start, floor_to(now - SETTLED, BUCKET))
        self._settled = {at: pico for at, pico in self._settled.items() if at in today}
        known_until = max((at + BUCKET for at in self._settled), default=today.start)
        found = await _by_quarter(session, by, Period(known_until, today.end), books)
        quarters = (
            known_until + n * BUCKET for n in range((settled_until - known_until) // BUCKET)
        )
        self._settled |= {at: found.get(at, 0) for at in quarters}
        return sum((self._settled | found).values())


async def _by_quarter(
    session: AsyncSession, by: Administrator, period: Period, books: Sequence[PriceBook]
) -> dict[datetime, int]:
    """Tenants and adapters without prices of their own are summed up: rating is linear."""
    special = sorted({book.tenant_id for book in books if book.tenant_id is not None})
    owner = case((UsageQuarter.tenant_id.in_(special), UsageQuarter.tenant_id), else_=None)
    named = sorted({price.adapter or BASE for book in books for price in book.prices} | {BASE})
    adapter_sold = case((UsageQuarter.adapter.in_(named), UsageQuarter.adapter), else_=ANY_ADAPTER)
    sold_as = (UsageQuarter.base_model, adapter_sold, UsageQuarter.tier)
    counts = (
        func.sum(UsageQuarter.uncached_prompt_tokens),
        func.sum(UsageQuarter.cached_prompt_tokens),
        func.sum(UsageQuarter.completion_tokens),
    )
    statement = (
        visible_to(by, UsageQuarter)
        .where(UsageQuarter.bucket >= period.start, UsageQuarter.bucket < period.end)
        .group_by(UsageQuarter.bucket, owner, *sold_as)
        .with_only_columns(UsageQuarter.bucket, owner, *sold_as, *counts)
    )
    tariffs = {id: _tariffs(books, id) for id in (None, *special)}
    pico: dict[datetime, int] = defaultdict(int)
    for bucket, whose, base, adapter, tier, *tokens in await session.execute(statement):
        tariff = tariffs[whose].at(bucket)
        pico[bucket] += cost_pico(Sku(base, adapter, tier), Tokens(*map(int, tokens)), tariff)
    return pico


def _tariffs(books: Sequence[PriceBook], tenant_id: str | None) -> Tariffs:
    return Tariffs([book for book in books if book.tenant_id in (None, tenant_id)])
