"""The one writer of SQLite: units of work share commits, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as TurnTimeout
from sqlalchemy.ext.asyncio import AsyncSession
from tests.until import until

from loraplex_platform.db.database import Database

INSERT = text("INSERT INTO note (id) VALUES (:id)")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'notes.sqlite3'}", pool_timeout_s=60)
    async with database.unit_of_work() as session:
        await session.execute(text("CREATE TABLE note (id INTEGER PRIMARY KEY)"))
    yield database
    await database.close()


async def note(session: AsyncSession, id: int) -> None:
    await session.execute(INSERT, {"id": id})


async def notes(database: Database) -> list[int]:
    async with database.reading() as session:
        return list(await session.scalars(text("SELECT id FROM note ORDER BY id")))


class Queue:
    """Units of work that pile up behind a first one, which `go` lets end."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.gate = asyncio.Event()
        self.first = asyncio.create_task(self._first())

    async def _first(self) -> None:
        async with self.database.unit_of_work() as session:
            await note(session, 0)
            await self.gate.wait()

    async def write(self, id: int) -> None:
        async with self.database.unit_of_work() as session:
            await note(session, id)

    async def behind(self, *ids: int) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.write(id)) for id in ids]
        await self.until_waiting(len(ids))
        return tasks

    async def until_waiting(self, count: int) -> None:
        writer = self.database._writer
        assert writer is not None
        await until(lambda: writer._num_waiting >= count)


async def test_units_that_queue_share_a_commit(database: Database) -> None:
    commits = []
    assert database._writer is not None
    event.listen(database._writer.engine.sync_engine, "commit", commits.append)
    queue = Queue(database)
    tasks = await queue.behind(*range(1, 21))
    queue.gate.set()
    await asyncio.gather(queue.first, *tasks)
    assert len(commits) == 1
    assert await notes(database) == list(range(21))


async def test_a_long_queue_is_committed_in_groups(database: Database) -> None:
    commits = []
    assert database._writer is not None
    event.listen(database._writer.engine.sync_engine, "commit", commits.append)
    queue = Queue(database)
    tasks = await queue.behind(*range(1, 80))
    queue.gate.set()
    await asyncio.gather(queue.first, *tasks)
    assert len(commits) == 3  # 32, 32, 16


async def test_a_unit_that_fails_takes_nothing_with_it(database: Database) -> None:
    queue = Queue(database)

    async def fail() -> None:
        async with database.unit_of_work() as session:
            await note(session, 100)
            raise ZeroDivisionError

    before = await queue.behind(1)
    failing = asyncio.create_task(fail())
    await queue.until_waiting(2)
    after = await queue.behind(2, 0)  # 0 is taken: the statement fails
    queue.gate.set()
    results = await asyncio.gather(queue.first, *before, failing, *after, return_exceptions=True)
    assert [type(r).__name__ for r in results] == [
        "NoneType",
        "NoneType",
        "ZeroDivisionError",
        "NoneType",
        "IntegrityError",
    ]
    assert await notes(database) == [0, 1, 2]


async def test_nobody_is_answered_before_the_commit(database: Database) -> None:
    queue, entered, leave = Queue(database), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with database.unit_of_work():
            entered.set()
            await leave.wait()

    holding = asyncio.create_task(hold())
    await queue.until_waiting(1)
    queue.gate.set()
    await entered.wait()
    assert not queue.first.done()
    assert await notes(database) == []
    leave.set()
    await asyncio.gather(queue.first, holding)
    assert await notes(database) == [0]


async def test_a_unit_cancelled_in_a_statement_takes_nothing_with_it(database: Database) -> None:
    queue, slow = Queue(database), text(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)"
        " SELECT count(*) FROM n"
    )  # fmt: skip
    entered = asyncio.Event()

    async def dawdle() -> None:
        async with database.unit_of_work() as session:
            await note(session, 100)
            entered.set()
            await session.execute(slow)
            await asyncio.sleep(60)

    dawdling = asyncio.create_task(dawdle())
    await queue.until_waiting(1)
    after = await queue.behind(1)
    queue.gate.set()
    await entered.wait()
    await asyncio.sleep(0.005)
    dawdling.cancel()
    await asyncio.gather(queue.first, *after)
    with pytest.raises(asyncio.CancelledError):
        await dawdling
    assert await notes(database) == [0, 1]


async def test_a_timeout_within_a_unit_is_a_timeout(database: Database) -> None:
    async def dawdle() -> None:
        async with asyncio.timeout(0.02), database.unit_of_work() as session:
            while True:
                await session.execute(text("SELECT 1"))
                await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        await dawdle()
    async with database.unit_of_work() as session:
        await note(session, 1)


async def test_whoever_is_cancelled_when_its_turn_comes_leaves_no_group_open(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, writer = Queue(database), database._writer
    assert writer is not None
    [waiting] = await queue.behind(1)
    release = writer._turn.release

    def release_and_cancel() -> None:
        release()
        waiting.cancel()

    monkeypatch.setattr(writer._turn, "release", release_and_cancel)
    queue.gate.set()
    async with asyncio.timeout(60):
        await queue.first
    assert await notes(database) == [0]


async def test_a_lost_transaction_is_told_to_all_who_wrote_in_it(database: Database) -> None:
    queue = Queue(database)

    async def lose() -> None:
        async with database.unit_of_work() as session:
            await session.execute(text("INSERT OR ROLLBACK INTO note (id) VALUES (0)"))

    losing = asyncio.create_task(lose())
    await queue.until_waiting(1)
    after = await queue.behind(1)
    queue.gate.set()
    results = await asyncio.gather(queue.first, losing, *after, return_exceptions=True)
    assert isinstance(results[0], OperationalError)
    assert isinstance(results[1], Exception)
    assert results[2] is None
    assert await notes(database) == [1]


async def test_a_turn_is_waited_for_so_long(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'notes.sqlite3'}", pool_timeout_s=0.05)
    async with database.unit_of_work():
        with pytest.raises(TurnTimeout):
            async with database.unit_of_work():
                pass
    await database.close()
