"""The database: SQLite (WAL) or PostgreSQL behind one async engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import Connection, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, UOWTransaction
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from loraplex_platform.db.base import Audited
from loraplex_platform.kit.news import News

UNREACHABLE = (OperationalError, InterfaceError, PoolTimeout)  # the database cannot be asked
CONNECT_S = 3
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA busy_timeout=10000",  # milliseconds a writer waits for another process
)


def async_url(url: str) -> str:
    """The URL with the driver that the platform uses: aiosqlite or psycopg."""
    return _with_driver(url, "sqlite+aiosqlite", "postgresql+psycopg")


def sync_url(url: str) -> str:
    """The same database for Alembic."""
    return _with_driver(url, "sqlite", "postgresql+psycopg")


def _with_driver(url: str, sqlite: str, postgres: str) -> str:
    parsed = make_url(url)
    backend = parsed.drivername.split("+")[0]
    drivers = {"sqlite": sqlite, "postgresql": postgres, "postgres": postgres}
    if backend not in drivers:
        raise ValueError(f"unsupported database: {backend} (use sqlite or postgresql)")
    return parsed.set(drivername=drivers[backend]).render_as_string(hide_password=False)


class WritingSession(Session):
    """Refuses to change audited rows until `audit.trail` watches it."""


@event.listens_for(WritingSession, "before_flush")
def refuse_unaudited(session: Session, _: UOWTransaction, __: object) -> None:
    if "actor" not in session.info:
        changed = [*session.new, *session.dirty, *session.deleted]
        assert not any(isinstance(row, Audited) for row in changed), "use audit.trail.changing"


class Database:
    """Hands out units of work; nobody else begins, commits or rolls back."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 5,
        pool_timeout_s: float = 30.0,
        news: News | None = None,
    ) -> None:
        self.url = url
        self.news = news or News()  # told of audited changes once they are committed
        is_sqlite = make_url(url).drivername.startswith("sqlite")
        self._engine = create_async_engine(
            async_url(url),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=pool_timeout_s,
            pool_pre_ping=not is_sqlite,  # a restarted Postgres is not noticed by a fact's writer
            connect_args={} if is_sqlite else {"connect_timeout": CONNECT_S},
        )
        if is_sqlite:
            event.listen(self._engine.sync_engine, "connect", configure_sqlite)
            event.listen(self._engine.sync_engine, "begin", begin_sqlite)
        reader = self._engine.execution_options(postgresql_readonly=True)
        self._write = async_sessionmaker(
            self._engine, expire_on_commit=False, sync_session_class=WritingSession
        )
        self._read = async_sessionmaker(reader, expire_on_commit=False)

    @asynccontextmanager
    async def unit_of_work(self) -> AsyncIterator[AsyncSession]:
        """One transaction that may write: commits at the end, rolls back on any exception."""
        async with self._write.begin() as session:
            yield session

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """One transaction that only reads; on SQLite it waits for no writer."""
        async with self._read() as session:
            yield session

    @property
    def num_checked_out(self) -> int:
        """Connections in use at this moment."""
        pool = self._engine.pool
        assert isinstance(pool, QueuePool)
        return pool.checkedout()

    async def close(self) -> None:
        await self._engine.dispose()


def configure_sqlite(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # we send BEGIN ourselves
    cursor = connection.cursor()
    for pragma in SQLITE_PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later cannot wait for the lock: take it at once.
    reads = connection.get_execution_options().get("postgresql_readonly", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
