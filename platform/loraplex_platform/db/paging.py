"""Keyset pages: no count, no offset."""

from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute

Row = TypeVar("Row", bound=tuple[Any, ...])


def page_after(
    statement: Select[*tuple[Any, ...]],
    key: InstrumentedAttribute[str],
    after: str | None,
    limit: int,
) -> Select[*tuple[Any, ...]]:
    """The `limit` rows whose key follows `after`; ids sort by time of creation."""
    if after is not None:
        statement = statement.where(key > after)
    return statement.order_by(key).limit(limit)
