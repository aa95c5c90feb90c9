"""INSERT … ON CONFLICT: both databases know it, SQLAlchemy has it in each dialect's own insert."""

from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.base import Base


def insert_into(session: AsyncSession, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    name = session.get_bind().dialect.name
    return sqlite.insert(table) if name == "sqlite" else postgresql.insert(table)


async def add_up(session: AsyncSession, table: type[Base], rows: list[dict[str, Any]]) -> None:
    """Insert rows; where a key exists already, add to every column that is not part of it.

    The rows go in the order of their keys, so that two writers never wait for each other in a ring.
    """
    columns = table.__table__.columns
    keys = [column.name for column in columns if column.primary_key]
    if not rows:
        return
    statement = insert_into(session, table)
    sums = {
        column.name: column + statement.excluded[column.name]
        for column in columns
        if not column.primary_key
    }
    in_order = sorted(rows, key=lambda row: [row[key] for key in keys])
    # Rows as parameters: the statement is compiled once, however many there are.
    await session.execute(statement.on_conflict_do_update(index_elements=keys, set_=sums), in_order)


async def keep_writers_out(session: AsyncSession, *tables: type[Base]) -> None:
    """Until the unit of work ends; on SQLite it is the only writer anyway."""
    if session.get_bind().dialect.name == "postgresql":
        names = ", ".join(table.__tablename__ for table in tables)
        await session.execute(text(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE"))
