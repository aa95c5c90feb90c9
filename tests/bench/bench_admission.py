"""What admission costs: time inside it, and the API's throughput with and without it.

Open loop (requests arrive by a Poisson process, whether or not earlier ones are done), the kinds
alternated in short rounds of one run, so that a noisy machine is noisy for all of them.

    PYTHONPATH=. python tests/bench/bench_admission.py --rate 60 --seconds 2 --rounds 5
"""

import argparse
import asyncio
import dataclasses
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import structlog
from tests.platform.limit_stores import script_calls
from tests.platform_stand import BASE, Seeded, seed, tiny_model
from tests.services import RedisServer, running_redis

from loraplex_engine.fake import FakeEngine
from loraplex_platform.admission.gate import Gate
from loraplex_platform.admission.guarded_store import GuardedStore
from loraplex_platform.admission.limiter import AdmitAll
from loraplex_platform.admission.limits import DIMENSIONS, Claim, Limit, Need
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.redis_store import RedisStore
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.admission.store import LimitStore
from loraplex_platform.app import create_app
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.tenants.service import TenantService

AMPLE = 1_000_000_000
PATIENT_S = 5.0  # what is slow is to be seen, not cut off
CHAT = {"model": BASE, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
LIMITS = [Limit(d, "tenant", "ten_a", AMPLE) for d in DIMENSIONS.values()]


async def open_loop(
    rate: float, seconds: float, work: Callable[[], Awaitable[float]]
) -> list[float]:
    """The seconds that each piece of work reports, in order of arrival."""
    draw, tasks = random.Random(0), list[asyncio.Task[float]]()
    at = time.perf_counter()
    end = at + seconds
    while at < end:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        tasks.append(asyncio.ensure_future(work()))
        at += draw.expovariate(rate)
    return list(await asyncio.gather(*tasks))


def told(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    median = statistics.median(ordered)
    return f"{name:8} n={len(ordered):5}  median {median * 1e3:8.3f} ms  p99 {p99 * 1e3:8.3f} ms"


async def time_inside(args: argparse.Namespace, redis: RedisServer) -> None:
    """Gate.admit against six limits; settling comes after the answer and is not in it."""
    stores: dict[str, LimitStore] = {
        "memory": MemoryStore(),
        "redis": GuardedStore(RedisStore(redis.url, PATIENT_S), workers=1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in stores}
    numbers = iter(range(10**9))

    def admission(name: str) -> Callable[[], Awaitable[float]]:
        gate = Gate(stores[name])

        async def admit() -> float:
            amounts = {"requests": 1, "tokens": 300, "running": 1, "queued": 1}
            need = Need(f"{name}-{next(numbers)}", "ten_a", amounts, ttl_s=60)
            started = time.perf_counter()
            claim = await gate.admit(need, LIMITS)
            spent = time.perf_counter() - started
            assert isinstance(claim, Claim)
            await gate.settle(claim, {"tokens": 200})
            return spent

        return admit

    for name in stores:
        await admission(name)()  # connects, sends the script
    before = script_calls(redis)
    for _ in range(args.rounds):
        for name in stores:
            seconds[name] += await open_loop(args.admission_rate, args.seconds, admission(name))
    print(f"Inside admission, {len(LIMITS)} limits, {args.admission_rate:g} arrivals a second:")
    for name, spent in seconds.items():
        print("  " + told(name, spent))
    trips = (script_calls(redis) - before) / len(seconds["redis"])
    print(f"  Redis round trips a request: {trips:.2f}")
    for store in stores.values():
        await store.close()


async def whole_requests(args: argparse.Namespace, redis: RedisServer, home: Path) -> None:
    """Chats through the whole API in one process, with an engine that costs nothing."""
    model = ServedModel.load(tiny_model(home / "model"), BASE)
    settings, keys = await prepared(home)
    shared = dataclasses.replace(settings, redis_url=redis.url, redis_timeout_s=PATIENT_S)
    apps = {
        "none": create_app(settings, FakeEngine(), model, limiter=AdmitAll()),
        "memory": create_app(settings, FakeEngine(), model),
        "redis": create_app(shared, FakeEngine(), model),
    }
    seconds: dict[str, list[float]] = {name: [] for name in apps}
    took: dict[str, float] = dict.fromkeys(apps, 0.0)
    for _ in range(args.rounds):
        for name, app in apps.items():
            async with httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app),
                base_url="http://bench",
                headers={"authorization": f"Bearer {keys.acme}"},
                timeout=60,
            ) as http:

                async def chat(http: httpx2.AsyncClient = http) -> float:
                    started = time.perf_counter()
                    answer = await http.post("/v1/chat/completions", json=CHAT)
                    assert answer.status_code == 200, answer.text
                    return time.perf_counter() - started

                await chat()
                started = time.perf_counter()
                seconds[name] += await open_loop(args.rate, args.seconds, chat)
                took[name] += time.perf_counter() - started
    print(f"Whole chats, {args.rate:g} arrivals a second:")
    for name, spent in seconds.items():
        print(f"  {told(name, spent)}  {len(spent) / took[name]:7.1f} requests/s")
    for app in apps.values():
        await app.state.inference.tasks.drain()
        await app.state.gate.close()
        await app.state.database.close()


async def prepared(home: Path) -> tuple[Settings, Seeded]:
    """A database with one ample limit of each dimension for the tenant acme."""
    settings = Settings(home=home)
    await asyncio.to_thread(upgrade, settings.database)
    keys = await seed(settings)
    database = Database(settings.database)
    acme = await TenantService(database, SystemClock()).get("acme")
    service = LimitService(database, SystemClock())
    for dimension in DIMENSIONS:
        subject = Subject(acme.id, "tenant", acme.id)
        await service.set(subject, dimension, AMPLE, strict=False)
    await database.close()
    return settings, keys


async def main(args: argparse.Namespace) -> None:
    with running_redis() as redis, tempfile.TemporaryDirectory() as home:
        await time_inside(args, redis)
        await whole_requests(args, redis, Path(home))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--admission-rate", type=float, default=200.0)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    asyncio.run(main(parser.parse_args()))
