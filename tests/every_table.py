"""Rows for every table there is, made from the tables themselves: a new one cannot be forgotten."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import JSON, Column, Connection, MetaData, inspect, null, text

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
BESIDES = "alembic_version"


def add_rows(connection: Connection, first: int) -> None:
    """To every table a row that is full, and one that has only what it must have.

    `first` and the number after it tell them from those of other calls.
    """
    metadata = MetaData()
    metadata.reflect(connection)
    for table in metadata.sorted_tables:
        if table.name != BESIDES:
            full = {column.name: _value(column, first) for column in table.columns}
            bare = {column.name: _needed(column, first + 1) for column in table.columns}
            connection.execute(table.insert(), [full])
            connection.execute(table.insert().values(**bare))


def content_by_column(connection: Connection) -> Mapping[str, list[str]]:
    """What stands in every column, whichever its row."""
    found = {}
    for table in sorted(set(inspect(connection).get_table_names()) - {BESIDES}):
        rows = connection.execute(text(f'SELECT * FROM "{table}"')).mappings().all()
        names = [column["name"] for column in inspect(connection).get_columns(table)]
        found |= {f"{table}.{name}": sorted(repr(row[name]) for row in rows) for name in names}
    return found


def _needed(column: Column[Any], number: int) -> Any:
    return null() if column.nullable else _value(column, number)


def _value(column: Column[Any], number: int) -> Any:
    """Another one for each number; what refers to a column has that column's."""
    for reference in column.foreign_keys:
        if reference.column is not column:
            return _value(reference.column, number)
    if isinstance(column.type, JSON):
        return {"number": number}
    kind = column.type.python_type
    if kind is str:
        return f"{column.table.name}.{column.name}-{number}"
    if kind is datetime:
        return EPOCH + timedelta(days=number)
    if kind is bytes:
        return bytes([number])
    if kind is bool:
        return number % 4 < 2
    return kind(number)
