"""The one writer of a SQLite file: units of work take turns, and those that queue share a commit."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiosqlite
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as TurnTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from loraplex_platform.db.sqlite import Connection

GROUP = 32  # units of work in one commit: then another process may write


@dataclass(slots=True)
class Group:
    """An open transaction, and what becomes of it."""

    connection: AsyncConnection
    committed: asyncio.Future[None]
    num_units: int = 0


@dataclass(slots=True)
class Writer:
    """Hands the one connection that writes from unit of work to unit of work, first come, first served.

    Several connections that write starve each other: SQLite lets them poll for its lock.
    """

    engine: AsyncEngine  # of one connection, and that a PatientConnection
    sessions: async_sessionmaker[AsyncSession]
    turn_timeout_s: float
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _num_waiting: int = 0
    _group: Group | None = None

    @asynccontextmanager
    async def unit_of_work(self, info: dict[str, Any]) -> AsyncIterator[AsyncSession]:
        """A savepoint in the open transaction; ends when that is committed.

        A unit that fails takes nothing of the others with it. `info` is the session's.
        """
        await self._wait()
        try:
            group = self._group = self._group or await self._begin()
            group.num_units += 1
            try:
                async with (
                    self.sessions(
                        bind=group.connection, join_transaction_mode="create_savepoint", info=info
                    ) as session,
                    session.begin(),
                ):
                    yield session
            finally:
                is_last = self._num_waiting == 0 or group.num_units >= GROUP
                if is_last or not await _is_open(group):
                    await self._end(group)
        finally:
            self._turn.release()
        await asyncio.shield(group.committed)

    async def _wait(self) -> None:
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self.turn_timeout_s):
                await self._turn.acquire()
        except TimeoutError as error:
            raise TurnTimeout("Others have been writing for too long.") from error
        finally:
            self._num_waiting -= 1
            if self._num_waiting == 0 and self._group is not None and not self._turn.locked():
                await self._end(self._group)  # it was left open for us, and we are cancelled

    async def _begin(self) -> Group:
        connection = await self.engine.connect()
        try:
            await connection.begin()
        except BaseException:
            await connection.close()
            raise
        return Group(connection, asyncio.get_running_loop().create_future())

    async def _end(self, group: Group) -> None:
        """Commit for all; who waits for it learns how that went."""
        self._group = None
        try:
            if not await _is_open(group):  # «OR ROLLBACK», or a full disk
                lost = aiosqlite.OperationalError("SQLite rolled the whole transaction back")
                raise OperationalError("COMMIT", None, lost)
            await group.connection.commit()
        except OperationalError as error:
            group.committed.set_exception(error)
            group.committed.exception()  # read, if all who waited are gone
        else:
            group.committed.set_result(None)
        finally:
            await group.connection.close()


async def _is_open(group: Group) -> bool:
    raw = await group.connection.get_raw_connection()
    driver = raw.driver_connection
    assert isinstance(driver, aiosqlite.Connection)
    return driver.in_transaction


class PatientConnection(Connection):
    """Ends the statement at work before its task may be cancelled.

    SQLAlchemy gives up the connection of a cancelled statement; here others have a share in it.
    """

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        statement = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((statement, partial(fn, *args, **kwargs)))
        task, is_cancelled = asyncio.current_task(), False
        while not statement.done():
            try:
                await asyncio.wait([statement])
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled and task is not None:
            task.uncancel()
            task.cancel()  # due when the task waits for something else
        return statement.result()
