"""API processes that count together in one Redis, and what they do when it goes away."""

import asyncio
import dataclasses
import itertools
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from tests.platform.limit_stores import NOON_MS, TENANT, claim, concurrent, script_calls
from tests.platform.test_limits_api import ASK, HeldEngine, limits_of, statuses, subject_of
from tests.platform_stand import Seeded, listening, tiny_model
from tests.services import RedisServer, running_redis
from tests.until import until

from loraplex_engine.fake import FakeEngine
from loraplex_platform.admission.guarded_store import FLUSH_AFTER_S
from loraplex_platform.admission.limits import Charge
from loraplex_platform.admission.redis_store import RedisStore
from loraplex_platform.app import create_app
from loraplex_platform.config import Settings
from loraplex_platform.openai.served_model import ServedModel

ROOT = Path(__file__).parents[2]
HOLDER = """
    import asyncio, sys
    from tests.platform.limit_stores import NOON_MS, claim, concurrent
    from loraplex_platform.admission.redis_store import RedisStore

    async def hold() -> None:
        store = RedisStore(sys.argv[1], timeout_s=60)
        for i in range(3):
            request = claim(f"held-{i}", concurrent(3))
            await store.reserve(request, 60, now_ms=NOON_MS + 1000 * i)
        print("held", flush=True)
        await asyncio.sleep(60)

    asyncio.run(hold())
"""


@pytest.fixture
def shared(settings: Settings, redis_url: str) -> Settings:
    return dataclasses.replace(settings, workers=2, redis_url=redis_url, redis_timeout_s=60)


async def set_limit(settings: Settings, model: ServedModel, key: str, **rule: int | bool) -> None:
    app = create_app(dataclasses.replace(settings, workers=1, redis_url=None), FakeEngine(), model)
    subject = await subject_of(app, "tenant", key)
    strict = bool(rule.pop("strict", False))
    for dimension, value in rule.items():
        await limits_of(app).set(subject, dimension, value, strict=strict)
    await app.state.database.close()


@pytest.mark.parametrize("dimension", ["requests_per_minute", "concurrent_requests"])
async def test_two_workers_over_one_redis_admit_what_one_would(
    shared: Settings, model: ServedModel, keys: Seeded, dimension: str
) -> None:
    await set_limit(shared, model, keys.acme, **{dimension: 5})
    engines = HeldEngine(), HeldEngine()
    workers = [create_app(shared, engine, model) for engine in engines]
    told = list[int]()
    async with listening(workers[0]) as first, listening(workers[1]) as second:
        asks = [statuses(url, keys.acme, 50, told) for url in (first, second)]
        asking = asyncio.gather(*asks)
        await until(lambda: len(told) >= 95)
        for engine in engines:
            engine.let_go()
        answers = list(itertools.chain(*await asking))
    assert (answers.count(200), answers.count(429)) == (5, 95)


async def test_without_redis_requests_go_on_and_readyz_says_degraded(
    settings: Settings, model: ServedModel, keys: Seeded
) -> None:
    await set_limit(settings, model, keys.acme, requests_per_minute=8)
    with running_redis() as server:
        shared = dataclasses.replace(settings, workers=4, redis_url=server.url, redis_timeout_s=60)
        async with listening(create_app(shared, FakeEngine(), model)) as url:
            assert (await statuses(url, keys.acme, 3)).count(200) == 3
            server.kill()
            assert (await statuses(url, keys.acme, 12)).count(200) == 8 // 4
            assert await _limiter_check(url) == (200, "degraded")
            server.start()
            await until(lambda: _is_recovered(url))
            assert (await statuses(url, keys.acme, 12)).count(200) == 8


async def test_without_redis_a_strict_limit_is_a_503(
    settings: Settings, model: ServedModel, keys: Seeded
) -> None:
    await set_limit(settings, model, keys.acme, tokens_per_month=10_000, strict=True)
    with running_redis() as server:
        shared = dataclasses.replace(settings, redis_url=server.url, redis_timeout_s=60)
        async with listening(create_app(shared, FakeEngine(), model)) as url:
            assert await statuses(url, keys.acme, 2) == [200, 200]
            server.kill()
            assert await statuses(url, keys.acme, 2) == [503, 503]
            async with httpx2.AsyncClient(timeout=60) as http:
                bearer = {"authorization": f"Bearer {keys.acme}"}
                answer = await http.post(f"{url}/v1/chat/completions", json=ASK, headers=bearer)
    assert answer.json()["error"]["code"] == "server_is_overloaded"
    assert "tokens per month of this tenant cannot be checked" in answer.text
    assert answer.headers["retry-after"] == "1"


def take_leases_and_die(redis_url: str) -> None:
    """A process that holds three leases of a minute, taken one after the other, killed."""
    paths = [ROOT, *(ROOT / layer for layer in ("platform", "engine"))]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), redis_url],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(map(str, paths))},
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"held\n"
        worker.kill()


async def test_a_killed_workers_leases_expire_and_nothing_is_lost_for_good(
    redis_server: RedisServer, redis_url: str
) -> None:
    await asyncio.to_thread(take_leases_and_die, redis_url)
    store, now_ms = RedisStore(redis_url, timeout_s=60), NOON_MS + 3000
    outcome = await store.reserve(claim("next", concurrent(3)), 60, now_ms=now_ms)
    assert not outcome.admitted
    wait_ms = outcome.readings[0].wait_ms
    assert wait_ms == 57_000
    now_ms += wait_ms
    assert (await store.reserve(claim("next", concurrent(3)), 60, now_ms=now_ms)).admitted
    for later_ms, used in ((0, 3), (2000, 1)):
        (reading,) = await store.read(TENANT, [Charge(concurrent(3), 0)], now_ms=now_ms + later_ms)
        assert reading.used == used
    await store.close()


TTL_S = 10.0
API = """
    import asyncio, sys
    from pathlib import Path
    from tests.platform_stand import BASE, listening
    from loraplex_engine.fake import FakeEngine
    from loraplex_platform.app import create_app
    from loraplex_platform.config import Settings
    from loraplex_platform.openai.served_model import ServedModel

    async def serve() -> None:
        home, redis_url, model = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
        settings = Settings(
            home=home, redis_url=redis_url, redis_timeout_s=60, workers=2, claim_ttl_s=float(sys.argv[4])
        )
        app = create_app(settings, FakeEngine(step_s=1.0), ServedModel.load(model, BASE))
        async with listening(app) as url:
            print(url, flush=True)
            await asyncio.sleep(600)

    asyncio.run(serve())
"""


@contextmanager
def api_worker(
    shared: Settings, model_folder: Path
) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """A process that serves the API, and its base URL."""
    assert shared.redis_url is not None
    arguments = [str(shared.home), shared.redis_url, str(model_folder), str(TTL_S)]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(API), *arguments],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    ) as worker:
        assert worker.stdout is not None
        try:
            yield worker, worker.stdout.readline().decode().strip()
        finally:
            worker.kill()


@pytest.mark.slow
async def test_a_killed_api_workers_streams_give_their_places_back(
    shared: Settings, model: ServedModel, keys: Seeded, tmp_path: Path
) -> None:
    await set_limit(shared, model, keys.acme, concurrent_requests=3)
    other = create_app(dataclasses.replace(shared, claim_ttl_s=TTL_S), FakeEngine(), model)
    with api_worker(shared, tiny_model(tmp_path / "tiny")) as (worker, url):
        started: asyncio.Queue[int] = asyncio.Queue()
        asks = [asyncio.create_task(broken_off(url, keys.acme, started)) for _ in range(3)]
        async with listening(other) as base_url:
            assert [await started.get() for _ in asks] == [200] * 3
            assert await statuses(base_url, keys.acme, 1) == [429]
            worker.kill()
            await asyncio.gather(*asks)

            async def are_back() -> bool:
                return await statuses(base_url, keys.acme, 3) == [200, 200, 200]

            await until(are_back)


async def broken_off(url: str, key: str, started: asyncio.Queue[int]) -> None:
    """A stream whose server dies; tells its status when it has begun."""
    body, bearer = ASK | {"max_tokens": 500, "stream": True}, {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(timeout=60) as http:
        with suppress(httpx2.TransportError):
            chat = f"{url}/v1/chat/completions"
            async with http.stream("POST", chat, json=body, headers=bearer) as response:
                started.put_nowait(response.status_code)
                await response.aread()


async def test_a_request_is_one_round_trip(
    shared: Settings, model: ServedModel, keys: Seeded, redis_server: RedisServer
) -> None:
    rules = {"requests_per_minute": 100, "tokens_per_minute": 100_000, "concurrent_requests": 9}
    await set_limit(shared, model, keys.acme, **rules, queued_requests=9)
    async with listening(create_app(shared, FakeEngine(), model)) as url:
        await statuses(url, keys.acme, 1)  # sends the script
        started_s, before = time.monotonic(), script_calls(redis_server)
        for _ in range(10):
            assert await statuses(url, keys.acme, 1) == [200]
        num_calls = script_calls(redis_server) - before
        timers = (time.monotonic() - started_s) / FLUSH_AFTER_S + 1
        assert 10 <= num_calls <= 10 + timers


async def _limiter_check(url: str) -> tuple[int, str]:
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = await http.get(f"{url}/readyz")
    assert (
        answer.json()["status"] == answer.json()["checks"]["limiter"] or answer.status_code == 503
    )
    return answer.status_code, answer.json()["checks"]["limiter"]


async def _is_recovered(url: str) -> bool:
    return await _limiter_check(url) == (200, "ok")
