"""Publishing price books, and what they cost a tenant."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator
from loraplex_platform.kit.recent import Recent
from loraplex_platform.usage.billing_models import PriceBookRow
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.prices import BadPriceBook, PriceBook, Sku, Tariffs
from loraplex_platform.usage.rating import Tokens, cost_pico

CACHE_S = 1.0
LEAD = timedelta(minutes=1)  # every process has read a book long before it takes effect


class PriceService:
    """Books are published ahead of their time, so that nothing that was rated changes."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._recent: Recent[str, Tariffs] = Recent(clock, CACHE_S)

    async def publish(
        self,
        effective_from: datetime,
        content: Mapping[str, Any],
        tenant_id: str | None = None,
        by: Administrator = COMMAND_LINE,
    ) -> PriceBook:
        """A new version of the list, or of a tenant's own prices."""
        if effective_from < self._clock.now() + LEAD:
            raise InvalidRequest(
                "a price book takes effect at least a minute from now", param="effective_from"
            )
        try:
            book = PriceBook.from_json(new_id("book"), effective_from, tenant_id, content)
        except BadPriceBook as error:
            raise InvalidRequest(str(error), param="content") from error
        row = PriceBookRow(
            id=book.id,
            tenant_id=tenant_id,
            effective_from=effective_from,
            content=book.to_json(),
            created_at=self._clock.now(),
        )
        try:
            async with changing(self._database, by, self._clock) as session:
                await PriceRepository(session).add(row)
        except IntegrityError as error:
            raise Conflict("another book takes effect at that moment") from error
        return book

    async def list(self) -> Sequence[PriceBook]:
        async with self._database.reading() as session:
            return await PriceRepository(session).books()

    async def page(self, *, after: str | None, limit: int) -> Sequence[PriceBook]:
        async with self._database.reading() as session:
            return await PriceRepository(session).page(after, limit)

    async def find(self, book_id: str) -> PriceBook:
        async with self._database.reading() as session:
            book = await PriceRepository(session).book(book_id)
        if book is None:
            raise NotFound(f"there is no price book {book_id!r}", param="book_id")
        return book

    async def tariffs(self, session: AsyncSession, tenant_id: str) -> Tariffs:
        """What holds for a tenant, for any moment up to now."""
        known = self._recent.get(tenant_id)
        if known is None:
            known = await PriceRepository(session).tariffs(tenant_id)
            self._recent.put(tenant_id, known)
        return known

    async def quote(
        self, tenant_id: str, sku: Sku, tokens: Tokens, at: datetime | None = None
    ) -> int:
        """Pico-USD that these tokens cost at that moment (None: now)."""
        known = self._recent.get(tenant_id)
        if known is None:
            async with self._database.reading() as session:
                known = await self.tariffs(session, tenant_id)
        return cost_pico(sku, tokens, known.at(at or self._clock.now()))
