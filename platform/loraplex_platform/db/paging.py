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
    *,
    is_descending: bool = False,
) -> Select[*tuple[Any, ...]]:
    """The `limit` rows whose key follows `after`; ids sort by time of creation."""
    if after is not None:
        statement = statement.where(key < after if is_descending else key > after)
    return statement.order_by(key.desc() if is_descending else key).limit(limit)
