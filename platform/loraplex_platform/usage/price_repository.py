"""Statements on price books."""

from collections.abc import Sequence

from sqlalchemy import or_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.paging import Sorting
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.usage.billing_models import PriceBookRow
from loraplex_platform.usage.prices import PriceBook, Tariffs

BY_TIME = Sorting(PriceBookRow.id, {"effective_from": PriceBookRow.effective_from})


class PriceRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, row: PriceBookRow) -> None:
        self._session.add(row)
        await self._session.flush()

    async def tariffs(self, tenant_id: str) -> Tariffs:
        """The list and the tenant's own books, of all times."""
        statement = across_tenants(PriceBookRow).where(
            or_(PriceBookRow.tenant_id.is_(None), PriceBookRow.tenant_id == tenant_id)
        )
        return Tariffs([book_of(row) for row in await self._session.scalars(statement)])

    async def books(self) -> list[PriceBook]:
        statement = across_tenants(PriceBookRow).order_by(PriceBookRow.effective_from)
        return [book_of(row) for row in await self._session.scalars(statement)]

    async def page(self, after: str | None, limit: int) -> list[PriceBook]:
        """In the order in which they take effect."""
        statement = across_tenants(PriceBookRow)
        rows: Sequence[PriceBookRow] = await BY_TIME.page(
            self._session, statement, "effective_from", after, limit
        )
        return [book_of(row) for row in rows]

    async def book(self, book_id: str) -> PriceBook | None:
        row = await self._session.scalar(
            across_tenants(PriceBookRow).where(PriceBookRow.id == book_id)
        )
        return None if row is None else book_of(row)


def book_of(row: PriceBookRow) -> PriceBook:
    return PriceBook.from_json(row.id, row.effective_from, row.tenant_id, row.content)
