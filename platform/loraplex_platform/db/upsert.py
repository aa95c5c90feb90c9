"""INSERT … ON CONFLICT: both databases know it, SQLAlchemy has it in each dialect's own insert."""

from functools import cache
from typing import Any

from sqlalchemy import Executable, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from loraplex_platform.db.base import Base

Insert = sqlite.Insert | postgresql.Insert


def insert_into(session: AsyncSession, table: type[Base]) -> Insert:
    return _insert_into(session.get_bind().dialect.name, table)


def insert_missing(
    session: AsyncSession, table: type[Base], *returning: InstrumentedAttribute[Any]
) -> Executable:
    """For rows as parameters: those that are there already stay as they are, and return nothing."""
    return _inserting_missing(session.get_bind().dialect.name, table, *returning)


async def add_up(session: AsyncSession, table: type[Base], rows: list[dict[str, Any]]) -> None:
    """Insert rows; where a key exists already, add to every column that is not part of it.

    The rows go in the order of their keys, so that two writers never wait for each other in a ring.
    """
    if not rows:
        return
    keys = [column.name for column in table.__table__.primary_key]
    in_order = sorted(rows, key=lambda row: [row[key] for key in keys])
    await session.execute(_adding_up(session.get_bind().dialect.name, table), in_order)


def _insert_into(dialect: str, table: type[Base]) -> Insert:
    target = table.metadata.tables[table.__tablename__]  # not the class: the ORM has nothing to add
    return sqlite.insert(target) if dialect == "sqlite" else postgresql.insert(target)


# With rows as parameters a statement is made and compiled once, however many rows there are.


@cache
def _inserting_missing(
    dialect: str, table: type[Base], *returning: InstrumentedAttribute[Any]
) -> Executable:
    statement = _insert_into(dialect, table).on_conflict_do_nothing()
    return statement.returning(*returning) if returning else statement


@cache
def _adding_up(dialect: str, table: type[Base]) -> Insert:
    statement = _insert_into(dialect, table)
    sums = {
        column.name: column + statement.excluded[column.name]
        for column in table.__table__.columns
        if not column.primary_key
    }
    return statement.on_conflict_do_update(index_elements=table.__table__.primary_key, set_=sums)


async def keep_writers_out(session: AsyncSession, *tables: type[Base]) -> None:
    """Until the unit of work ends; on SQLite it is the only writer anyway."""
    if session.get_bind().dialect.name == "postgresql":
        names = ", ".join(table.__tablename__ for table in tables)
        await session.execute(text(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE"))
