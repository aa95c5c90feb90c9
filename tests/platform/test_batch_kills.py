"""SIGKILL at every point of a line's and a job's life, and real Celery workers on a real Redis."""

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from tests.engine.fake_core import CountdownCore
from tests.platform.batch_stand import jsonl, line
from tests.platform.doomed import POINTS
from tests.platform_stand import BASE, seed, tiny_model
from tests.services import running_postgres, running_redis
from tests.until import until

from loraplex_adapters.blobs import BlobStore
from loraplex_engine.server import EngineServer
from loraplex_platform.auth.authenticator import Authenticator
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.batches.schemas import FINAL, CreateBatch
from loraplex_platform.batches.service import BatchService, Bell
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.files.schemas import UploadForm
from loraplex_platform.files.service import FileService
from loraplex_platform.jobs.doorbell import Doorbell
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.models import Batch, UsageEvent
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.rating import cost_pico, sku_of, tokens_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LEASE_S, TICK_S = 5.0, 0.2
START_S = 120.0  # a process may take so long to start on a busy machine


class Site(NamedTuple):
    """A home, an engine on a socket, and the environment of processes that work there."""

    settings: Settings
    environment: dict[str, str]
    key: str
    core: CountdownCore


@contextmanager
def engine_at(address: str) -> Iterator[CountdownCore]:
    core = CountdownCore(step_s=0.01)
    server = EngineServer(core, address)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield core
    server.drain(0.0)
    thread.join(60)


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path / 'loraplex.sqlite3'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with site_at(tmp_path, url, redis_url) as site:
        yield site


@contextmanager
def site_at(home: Path, database_url: str, redis_url: str) -> Iterator[Site]:
    upgrade(database_url)
    settings = Settings(home=home, database_url=database_url, redis_url=redis_url)
    (home / "doom").mkdir()
    address = f"ipc://{home}/e"
    given = {
        "HOME": home,
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "MODEL": tiny_model(home / "tiny"),
        "SERVED_MODEL_NAME": BASE,
        "ENGINE_ADDRESS": address,
        "BATCH_LEASE_S": LEASE_S,
        "BATCH_TICK_S": TICK_S,
        "REDIS_TIMEOUT_S": 60,
    }
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "DOOM_FOLDER": str(home / "doom"),
    } | {f"LORAPLEX_{name}": str(value) for name, value in given.items()}
    # in a thread of its own: the test's loop may be running
    with ThreadPoolExecutor(1) as pool:
        keys = pool.submit(lambda: asyncio.run(seed(settings))).result()
    with engine_at(address) as core:
        yield Site(settings, environment, keys.acme, core)


@contextmanager
def process(site: Site, *command: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (site.settings.home / "log").open("ab") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=site.environment,
            stdout=log,
            stderr=log,
            cwd=site.settings.home,
        )
        try:
            yield started
        finally:
            children = []
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(started.pid).children(recursive=True)
            started.kill()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            started.wait()


class Desk:
    """A tenant's view of the site, without an API process."""

    def __init__(self, site: Site, bell: Bell | None = None) -> None:
        clock = SystemClock()
        self._database = Database(site.settings.database)
        self._files = FileService(self._database, BlobStore(site.settings.files), clock)
        self._batches = BatchService(self._database, bell, clock)
        self._keys = Authenticator(
            self._database, Secrets.load_or_create(site.settings.home), clock
        )
        self._key = site.key

    async def submit(self, count: int) -> str:
        principal = await self._keys.authenticate(self._key)
        content = io.BytesIO(jsonl(*(line(str(i)) for i in range(count))))
        file = await self._files.create(principal, UploadForm(purpose="batch"), "a.jsonl", content)
        order = CreateBatch(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        return (await self._batches.create(principal, order)).id

    async def batch(self, batch_id: str) -> Batch:
        async with self._database.reading() as session:
            batch = await BatchRepository(session).any_of(batch_id)
        assert batch is not None
        return batch

    async def events(self) -> list[UsageEvent]:
        async with self._database.reading() as session:
            return list(await session.scalars(across_tenants(UsageEvent)))

    async def costs(self, events: list[UsageEvent]) -> tuple[int, int]:
        """What the ledger charges, and what these events come to at their prices."""
        async with self._database.reading() as session:
            tenant_id = events[0].tenant_id
            tariffs = await PriceService(self._database, SystemClock()).tariffs(session, tenant_id)
            charged = await LedgerRepository(session).balance(tenant_id, "receivable", kind="usage")
        rated = (cost_pico(sku_of(e), tokens_of(e), tariffs.at(e.started_at)) for e in events)
        return charged, sum(rated)

    def results(self, batch: Batch) -> list[str]:
        ids = []
        for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
            with self._files.open_held(file_id) as file:
                ids += [json.loads(text)["custom_id"] for text in file]
        return ids

    async def is_over(self, batch_id: str) -> bool:
        return (await self.batch(batch_id)).status in FINAL

    async def has_begun(self, batch_id: str) -> bool:
        return (await self.batch(batch_id)).running > 0

    async def has_results(self, batch_id: str) -> bool:
        return (await self.batch(batch_id)).completed > 0

    async def close(self) -> None:
        await self._database.close()


@pytest.fixture
def desk(site: Site) -> Desk:
    return Desk(site)


def log_of(site: Site) -> str:
    return (site.settings.home / "log").read_text()[-4000:]


def deaths(site: Site) -> set[str]:
    return {path.name for path in Path(site.environment["DOOM_FOLDER"]).iterdir()}


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], site: Site, within_s: float = START_S
) -> None:
    try:
        await until(condition, within_s)
    except TimeoutError:
        raise TimeoutError(log_of(site)) from None


def has_ended(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() is not None


async def finished(desk: Desk, site: Site, batch_id: str, within_s: float = START_S) -> Batch:
    await eventually(lambda: desk.is_over(batch_id), site, within_s)
    return await desk.batch(batch_id)


async def check_exactly_once(desk: Desk, batch: Batch, count: int) -> None:
    assert (batch.status, batch.completed, batch.failed) == ("completed", count, 0)
    assert sorted(desk.results(batch)) == sorted(str(i) for i in range(count))
    events = await desk.events()
    assert sorted(e.request_id for e in events) == sorted(
        f"batch:{batch.id}:{n}" for n in range(1, count + 1)
    )
    assert batch.output_tokens == sum(e.completion_tokens for e in events) == 3 * count
    assert batch.input_tokens == sum(e.prompt_tokens for e in events)
    assert batch.enqueued_tokens == batch.running == 0
    charged, rated = await desk.costs(events)
    assert charged == rated > 0


async def test_a_dispatcher_killed_at_every_point_does_each_line_once(
    site: Site, desk: Desk
) -> None:
    batch_id = await desk.submit(20)
    for number in range(len(POINTS)):
        with process(site, "tests.platform.doomed", "dispatcher") as doomed:
            await eventually(partial(has_ended, doomed), site)
            assert len(deaths(site)) == number + 1, log_of(site)
    with process(site, "tests.platform.doomed", "dispatcher"):
        batch = await finished(desk, site, batch_id, START_S + LEASE_S + 2 * TICK_S)
    assert deaths(site) == set(POINTS)
    await check_exactly_once(desk, batch, 20)
    await desk.close()


async def test_a_worker_killed_at_every_point_does_each_line_once(site: Site, desk: Desk) -> None:
    """Celery starts a new process after each kill; nobody rings, and none of the messages matter."""
    batch_id = await desk.submit(20)
    with process(site, "tests.platform.doomed", "worker"):
        batch = await finished(desk, site, batch_id, 3 * START_S)
        assert deaths(site) == set(POINTS)
    await check_exactly_once(desk, batch, 20)
    await desk.close()


WORKER = ("loraplex_platform.jobs", "worker")
BEAT = ("loraplex_platform.jobs", "beat")
on_sqlite = pytest.mark.parametrize("site", ["sqlite"], indirect=True)


@on_sqlite
async def test_a_ring_starts_a_job_long_before_the_next_tick(site: Site, desk: Desk) -> None:
    site.environment["LORAPLEX_BATCH_TICK_S"] = "300"
    bell = Doorbell(site.environment["LORAPLEX_REDIS_URL"])
    rung = Desk(site, bell)
    with process(site, *WORKER):
        first = await desk.submit(1)  # the worker looks when it starts
        await finished(desk, site, first)
        second = await rung.submit(1)
        await finished(desk, site, second)
    await bell.stop(1.0)
    await desk.close()
    await rung.close()


@on_sqlite
async def test_beat_rings_for_a_job_that_nobody_announced(site: Site, desk: Desk) -> None:
    site.environment["LORAPLEX_BATCH_TICK_S"] = "300"
    with process(site, *WORKER):
        await finished(desk, site, await desk.submit(1))
        site.environment["LORAPLEX_BATCH_TICK_S"] = "0.5"
        with process(site, *BEAT):
            await finished(desk, site, await desk.submit(1))
    await desk.close()


@on_sqlite
async def test_a_worker_told_to_stop_gives_back_what_it_cannot_end(site: Site, desk: Desk) -> None:
    site.core.step_s = 2.0  # a line takes six seconds
    with process(site, *WORKER) as worker:
        batch_id = await desk.submit(40)
        await eventually(lambda: desk.has_begun(batch_id), site)
        worker.terminate()
        await eventually(partial(has_ended, worker), site)
        batch = await desk.batch(batch_id)
    assert worker.returncode == 0
    assert batch.running == 0, log_of(site)
    site.core.step_s = 0.001
    with process(site, *WORKER):
        batch = await finished(desk, site, batch_id)
    await check_exactly_once(desk, batch, 40)
    await desk.close()


async def test_restarts_of_redis_and_of_the_database_lose_nothing(tmp_path: Path) -> None:
    with running_redis() as redis, running_postgres() as postgres:
        url = postgres.create_database("jobs")
        with site_at(tmp_path, url, redis.url) as site:
            desk = Desk(site)
            batch_id = await desk.submit(150)
            site.core.step_s = 0.1
            with process(site, *WORKER):
                await eventually(lambda: desk.has_results(batch_id), site)
                await desk.close()
                redis.restart()
                postgres.restart()
                desk = Desk(site)
                batch = await finished(desk, site, batch_id, 2 * START_S)
            await check_exactly_once(desk, batch, 150)
            await desk.close()
