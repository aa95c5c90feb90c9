"""Sums of whole numbers that no database's integer can hold."""

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func
from sqlalchemy.orm import InstrumentedAttribute

UNIT = 10**9


class ExactSum(NamedTuple):
    """Two columns whose sums stay below 2^63; SQLite raises beyond it, at nine million dollars."""

    high: ColumnElement[Any]
    low: ColumnElement[Any]


def exact_sum(column: InstrumentedAttribute[int]) -> ExactSum:
    return ExactSum(func.sum(column.op("/")(UNIT)), func.sum(column.op("%")(UNIT)))


def joined(high: Any, low: Any) -> int:
    """The sum that the two columns are parts of; 0 where there were no rows."""
    return int(high or 0) * UNIT + int(low or 0)
