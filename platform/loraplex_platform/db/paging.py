"""Keyset pages: no count, no offset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

Row = TypeVar("Row", bound=tuple[Any, ...])
Listed = TypeVar("Listed")
Column = InstrumentedAttribute[Any] | ColumnElement[Any]


def page_after(
    statement: Select[*tuple[Any, ...]],
    key: InstrumentedAttribute[str],
    after: str | None,
    limit: int,
    *,
    is_descending: bool = False,
) -> Select[*tuple[Any, ...]]:
    """The `limit` rows whose key follows `after`; ids sort by time of creation."""
    if after is not None:
        statement = statement.where(key < after if is_descending else key > after)
    return statement.order_by(key.desc() if is_descending else key).limit(limit)


async def nth_newest(
    session: AsyncSession,
    statement: Select[*tuple[Any, ...]],
    moment: InstrumentedAttribute[datetime],
    number: int,
) -> datetime | None:
    """From when on there are so many rows: what a search that no index serves may read."""
    newest = statement.with_only_columns(moment).order_by(moment.desc())
    found: datetime | None = await session.scalar(newest.offset(number - 1).limit(1))
    return found


@dataclass(frozen=True, slots=True)
class Sorting:
    """What a table may be sorted by, and which column tells its rows apart."""

    key: InstrumentedAttribute[str]
    columns: Mapping[str, Column]

    async def page(
        self,
        session: AsyncSession,
        statement: Select[Listed],
        order: str,
        after: str | None,
        limit: int,
    ) -> Sequence[Listed]:
        """A page of all rows in this order, from behind the row with the key `after`.

        The order is a column's name, with «-» before it the largest first, and else the key's. Rows
        that are equal come by their keys, those without a value at the end.
        """
        name = order.removeprefix("-")
        column = self.columns.get(name, self.key)
        is_descending = order == f"-{name}" and name in self.columns
        if column is self.key:
            statement = page_after(statement, self.key, after, limit, is_descending=is_descending)
            return (await session.scalars(statement)).all()
        if after is not None:
            last = statement.where(self.key == after).with_only_columns(column)
            row = (await session.execute(last)).one_or_none()
            if row is not None:
                statement = statement.where(self._behind(column, row[0], after, is_descending))
        ordered = [part.desc() if is_descending else part.asc() for part in (column, self.key)]
        if _may_lack(column):
            ordered.insert(0, column.is_(None).asc())
        return (await session.scalars(statement.order_by(*ordered).limit(limit))).all()

    def _behind(
        self, column: Column, value: Any, key: str, is_descending: bool
    ) -> ColumnElement[bool]:
        if value is None:
            return column.is_(None) & (self.key < key if is_descending else self.key > key)
        place = tuple_(column, self.key)
        behind = place < (value, key) if is_descending else place > (value, key)
        return behind | column.is_(None) if _may_lack(column) else behind


def _may_lack(column: Column) -> bool:
    """An expression may be NULL wherever nobody says otherwise."""
    return bool(getattr(column, "nullable", True))
