"""The database: SQLite (WAL) or PostgreSQL behind one async engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, SessionTransaction, UOWTransaction
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from loraplex_platform.db import sqlite
from loraplex_platform.db.base import Audited
from loraplex_platform.db.writer import PatientConnection, Writer
from loraplex_platform.kit.news import News
from loraplex_platform.kit.principal import Administrator, Principal

ROWS_OF = "rows_of"  # in a session's info: one tenant's id, or EVERY_TENANT
EVERY_TENANT = "*"
SEES = "SELECT set_config('loraplex.tenant_id', %s, true)"  # until the transaction ends
MAY_BYPASS = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
UNREACHABLE = (OperationalError, InterfaceError, PoolTimeout)  # the database cannot be asked
CONNECT_S = 3
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # what is committed survives a power cut
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


class ScopedSession(Session):
    """Tells Postgres in each transaction whose rows it may touch: row-level security keeps to that."""


@event.listens_for(ScopedSession, "after_begin")
def tell_whose_rows(session: Session, _: SessionTransaction, connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(SEES, (session.info[ROWS_OF],))


class WritingSession(ScopedSession):
    """Refuses to change audited rows until `audit.trail` watches it."""


@event.listens_for(WritingSession, "before_flush")
def refuse_unaudited(session: Session, _: UOWTransaction, __: object) -> None:
    if "actor" not in session.info:
        changed = [*session.new, *session.dirty, *session.deleted]
        assert not any(isinstance(row, Audited) for row in changed), "use audit.trail.changing"


Asking = Principal | Administrator | None


def _info(of: Asking) -> dict[str, Any]:
    return {ROWS_OF: EVERY_TENANT if of is None or of.tenant_id is None else of.tenant_id}


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
        pool = Pool(pool_size, pool_timeout_s)
        is_sqlite = make_url(url).drivername.startswith("sqlite")
        self._engine = open_sqlite(url, pool) if is_sqlite else open_postgres(url, pool)
        self._read = async_sessionmaker(
            self._engine.execution_options(postgresql_readonly=True),
            expire_on_commit=False,
            sync_session_class=ScopedSession,
        )
        self._write = async_sessionmaker(
            self._engine, expire_on_commit=False, sync_session_class=WritingSession
        )
        self._writer: Writer | None = None
        if is_sqlite:
            writing = open_sqlite(url, pool._replace(size=1), for_all=True)
            self._writer = Writer(writing, self._write, pool_timeout_s)

    @asynccontextmanager
    async def unit_of_work(self, of: Asking = None) -> AsyncIterator[AsyncSession]:
        """One transaction that may write: commits at the end, rolls back on any exception.

        It may touch what belongs to the tenant that asks; None is the platform's own work.
        """
        if self._writer is not None:
            async with self._writer.unit_of_work(_info(of)) as session:
                yield session
        else:
            async with self._write(info=_info(of)) as session, session.begin():
                yield session

    @asynccontextmanager
    async def reading(self, of: Asking = None) -> AsyncIterator[AsyncSession]:
        """One transaction that only reads; on SQLite it waits for no writer."""
        async with self._read(info=_info(of)) as session:
            yield session

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncSession]:
        """Reading of all tenants' rows, and every statement sees the same moment."""
        async with self._read(info=_info(None)) as session:
            if self._engine.dialect.name == "postgresql":  # SQLite's readers do so anyway
                await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @property
    def num_checked_out(self) -> int:
        """Connections in use at this moment."""
        pools = [engine.pool for engine in self._engines]
        assert all(isinstance(pool, QueuePool) for pool in pools)
        return sum(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))

    async def close(self) -> None:
        for engine in self._engines:
            await engine.dispose()

    @property
    def _engines(self) -> list[AsyncEngine]:
        return [self._engine] if self._writer is None else [self._engine, self._writer.engine]


class Pool(NamedTuple):
    """How many connections there are, and how long one waits for one of them."""

    size: int
    timeout_s: float


def open_postgres(url: str, pool: Pool) -> AsyncEngine:
    return create_async_engine(
        async_url(url),
        pool_size=pool.size,
        max_overflow=0,
        pool_timeout=pool.timeout_s,
        pool_pre_ping=True,  # a restarted Postgres is not noticed by a fact's writer
        connect_args={"connect_timeout": CONNECT_S},
    )


def open_sqlite(url: str, pool: Pool, *, for_all: bool = False) -> AsyncEngine:
    """`for_all`: several tasks use a connection in one transaction."""
    path = make_url(url).database
    assert path is not None, "SQLite needs a file"
    kind = PatientConnection if for_all else sqlite.Connection
    engine = create_async_engine(
        async_url(url),
        pool_size=pool.size,
        max_overflow=0,
        pool_timeout=pool.timeout_s,
        async_creator=lambda: kind(path),
    )
    event.listen(engine.sync_engine, "connect", configure_sqlite)
    event.listen(engine.sync_engine, "begin", begin_sqlite)
    return engine


async def is_bound_by_policies(session: AsyncSession) -> bool:
    """Whether row-level security means this connection's role; SQLite has none that would not."""
    if session.get_bind().dialect.name != "postgresql":
        return True
    connection = await session.connection()
    rows = await connection.exec_driver_sql(MAY_BYPASS)
    return not rows.scalar_one()


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
