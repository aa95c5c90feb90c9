"""SQLite's connections: few changes of threads, and nothing lost by that."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import text

from loraplex_platform.db import writer
from loraplex_platform.db.database import Database


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'notes.sqlite3'}", pool_size=1, pool_timeout_s=60)
    async with database.unit_of_work() as session:
        await session.execute(text("CREATE TABLE note (id INTEGER PRIMARY KEY)"))
    yield database
    await database.close()


@pytest.mark.parametrize(
    ("kind", "kept"),
    [(aiosqlite.Connection, "reading"), (writer.PatientConnection, "unit_of_work")],
)
async def test_a_statement_waits_for_the_thread_once(
    database: Database, monkeypatch: pytest.MonkeyPatch, kind: type[Any], kept: str
) -> None:
    waits: list[str] = []
    execute = kind._execute

    async def counted(self: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
        waits.append(work.__name__)
        return await execute(self, work, *args, **kwargs)

    async with getattr(database, kept)() as session:
        await session.execute(text("DELETE FROM note WHERE id = 0"))
        monkeypatch.setattr(kind, "_execute", counted)
        await session.execute(text("DELETE FROM note WHERE id = 1"))
        assert waits == ["execute"]
        assert (await session.scalars(text("SELECT id FROM note"))).all() == []
        assert waits == ["execute", "execute", "fetchall"]
        monkeypatch.undo()


async def test_a_reader_that_leaves_its_statement_at_work_harms_nobody(database: Database) -> None:
    at_work, may_end = threading.Event(), threading.Event()

    def wait() -> int:
        at_work.set()
        return int(may_end.wait(60))

    async def read() -> None:
        async with database.reading() as session:
            connection = await session.connection()
            driver = (await connection.get_raw_connection()).driver_connection
            assert isinstance(driver, aiosqlite.Connection)
            await driver.create_function("wait", 0, wait)
            await session.execute(text("SELECT wait()"))

    reading = asyncio.create_task(read())
    await asyncio.to_thread(at_work.wait, 60)
    reading.cancel()
    asyncio.get_running_loop().call_later(0.05, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await reading
    async with database.reading() as session:
        assert await session.scalar(text("SELECT count(*) FROM note")) == 0
    assert database.num_checked_out == 0
