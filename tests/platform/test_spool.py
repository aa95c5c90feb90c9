"""The durable spool: what it took is never lost, whoever dies and whatever is away."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from tests.usage_stand import books_of, entries_of, facts, metering, num_events, two_tenants

from loraplex_platform.config import Settings
from loraplex_platform.db.database import Asking, Database
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.meter import Meter, Point
from loraplex_platform.usage.spool import SEGMENT_BYTES, Spool


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


class AwayDatabase(Database):
    """Loses its connection at every write while it is told to."""

    is_away = False

    def unit_of_work(self, of: Asking = None) -> AbstractAsyncContextManager[AsyncSession]:
        if self.is_away:
            raise OperationalError("BEGIN", {}, ConnectionError("gone"))
        return super().unit_of_work(of)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


async def test_facts_survive_the_spool(folder: Path) -> None:
    spool = Spool(folder)
    event = facts(request_metadata={"a": "ü\n"}, queue_s=None, started_at=datetime.now(UTC))
    segment = await spool.append(event)
    assert list(segment.read()) == [event]


async def test_spool_is_empty_once_the_database_has_everything(
    database: Database, folder: Path
) -> None:
    acme, _ = await two_tenants(database)
    async with metering(database, folder) as meter:
        await asyncio.gather(*(meter.record(facts(acme)) for _ in range(50)))
        assert [path.stat().st_size for path in files_in(folder)] == [0]
    assert files_in(folder) == []
    assert await num_events(database) == 50


async def test_lines_that_come_together_share_a_write(folder: Path) -> None:
    spool = Spool(folder)
    segments = await asyncio.gather(*(spool.append(facts()) for _ in range(100)))
    assert len(set(segments)) == 1
    assert len(list(segments[0].read())) == segments[0].open_lines == 100


async def test_a_long_spool_is_cut_into_segments(folder: Path) -> None:
    spool = Spool(folder)
    large = facts(request_metadata={"pad": "x" * (SEGMENT_BYTES // 2)})
    segments = [await spool.append(replace(large)) for _ in range(5)]
    assert len(set(segments)) == 3
    for segment in segments[:4]:
        spool.written(segment)
    assert files_in(folder) == [segments[4].path]


async def test_a_database_outage_delays_and_loses_nothing(settings: Settings, folder: Path) -> None:
    database = AwayDatabase(settings.database)
    acme, _ = await two_tenants(database)
    async with metering(database, folder) as meter:
        await meter.record(facts(acme))
        database.is_away = True
        events = [facts(acme) for _ in range(20)]
        await asyncio.gather(*(meter.record(event) for event in events))
        with pytest.raises(OperationalError):
            await meter.drain()
        database.is_away = False
        await meter.record(events[0])  # told twice meanwhile
        assert await meter.drain() > 0
        assert await meter.drain() == 0
    assert await num_events(database) == 21
    assert len(await entries_of(database)) == 42
    assert files_in(folder) == []
    await database.close()


async def test_what_the_database_refuses_is_set_aside(database: Database, folder: Path) -> None:
    acme, _ = await two_tenants(database)
    spool = Spool(folder)
    orphan = facts("ten_unknown")
    for event in (facts(acme), orphan, facts(acme)):
        spool.stalled(await spool.append(event))
    meter = Meter(database, books_of(database), spool)
    await meter.drain()
    assert await num_events(database) == 2
    assert orphan.request_id in (folder / "refused.jsonl").read_text()


async def test_a_living_processs_segment_is_left_alone(folder: Path) -> None:
    other = Spool(folder)
    other.stalled(await other.append(facts()))
    assert Spool(folder).leftovers() == []
    other.close()
    assert len(Spool(folder).leftovers()) == 1


async def test_half_a_line_was_promised_to_nobody(folder: Path) -> None:
    spool = Spool(folder)
    event = facts()
    segment = await spool.append(event)
    os.pwrite(segment.fd, b'{"request_id": "req_', segment.size)
    assert list(segment.read()) == [event]


async def test_a_full_disk_takes_all_or_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(folder)
    first = facts()
    segment = await spool.append(first)
    whole = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:7], at))
        with pytest.raises(OSError, match="took 7"):
            await spool.append(facts())
    later = facts()
    await spool.append(later)
    assert list(segment.read()) == [first, later]


CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.usage_stand import facts, metering
from loraplex_platform.db.database import Database

url, folder, tenant, point = sys.argv[1:]
told = 0

def die(at):
    global told
    told += at == point
    if told == 6:
        os.kill(os.getpid(), signal.SIGKILL)

async def work():
    async with metering(Database(url), Path(folder), at=die) as meter:
        for number in range(10):
            await meter.record(facts(tenant, request_id=f"req_{number}"))
            print(number, flush=True)

asyncio.run(work())
"""


def killed_at(point: Point, url: str, folder: Path, tenant: str) -> int:
    """Lets a process record until it is killed at its sixth passing; how many it told of."""
    arguments = [sys.executable, "-c", CHILD, url, str(folder), tenant, point]
    path = os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))
    done = subprocess.run(
        arguments, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return len(done.stdout.split())


async def check_kill(point: Point, url: str, folder: Path) -> None:
    database = Database(url)
    tenant = (await TenantService(database, SystemClock()).create("acme")).id
    told = await asyncio.to_thread(killed_at, point, url, folder, tenant)
    async with metering(database, folder) as meter:
        await meter.drain()
    ended = told if point == "ended" else told + 1  # a request ends when its line is safe
    assert await num_events(database) == ended
    assert len(await entries_of(database)) == 2 * ended
    assert files_in(folder) == []
    await database.close()


@pytest.mark.parametrize("point", ["spooled", "written"])
async def test_a_kill_loses_nothing_and_doubles_nothing(
    database: Database, point: Point, folder: Path
) -> None:
    await check_kill(point, database.url, folder)
