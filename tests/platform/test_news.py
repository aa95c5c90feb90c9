"""A change made in one process is felt in all others at once where there is Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI
from openai import APIError, AsyncStream
from openai.types.chat import ChatCompletionChunk
from tests.platform_stand import BASE, Seeded, Served, letter_engine, listening
from tests.services import RedisServer, running_redis
from tests.until import until
from typer.testing import CliRunner

from loraplex_platform.admission.effective import EffectiveLimits
from loraplex_platform.admission.limits import Limit
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.auth.authenticator import CACHE_S, Authenticator
from loraplex_platform.auth.keys import PlainKey
from loraplex_platform.auth.service import KeyService
from loraplex_platform.cli import app as command_line
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import InvalidApiKey, PermissionDenied
from loraplex_platform.kit.principal import COMMAND_LINE, Principal
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.news.redis_news import RedisNews
from loraplex_platform.tenants.service import TenantService

TIMEOUT_S = 60.0  # a busy machine's Redis may be slow


@dataclass
class Worker:
    """What an API process remembers; its clock stands still, so nothing ends by age."""

    news: RedisNews
    authenticator: Authenticator
    limits: EffectiveLimits
    clock: ManualClock

    async def knows(self, key: PlainKey) -> bool:
        try:
            await self.authenticator.authenticate(str(key))
        except (InvalidApiKey, PermissionDenied):
            return False
        return True

    async def limits_of(self, tenant_id: str) -> tuple[Limit, ...]:
        return await self.limits.of(Principal(tenant_id, "", ""))


@asynccontextmanager
async def worker(url: str, redis_url: str, home: Path) -> AsyncIterator[Worker]:
    news = RedisNews(redis_url, TIMEOUT_S)
    database, clock = Database(url, news=news), ManualClock()
    authenticator = Authenticator(database, Secrets.load_or_create(home), clock)
    listening = asyncio.create_task(news.run())
    await news.is_listening.wait()
    yield Worker(news, authenticator, EffectiveLimits(database, clock), clock)
    listening.cancel()
    await asyncio.wait({listening})
    await news.close()
    await database.close()


@dataclass
class Stand:
    """Two workers that know acme's key, and a third process that changes things."""

    workers: list[Worker]
    tenants: TenantService
    keys: KeyService
    limits: LimitService
    tenant_id: str
    key: PlainKey

    async def until_all(self, is_so: bool) -> None:
        async def they_agree() -> bool:
            return {await w.knows(self.key) for w in self.workers} == {is_so}

        await until(they_agree)


@asynccontextmanager
async def stand_on(database: Database, redis_url: str, home: Path) -> AsyncIterator[Stand]:
    clock, secrets, news = (
        ManualClock(),
        Secrets.load_or_create(home),
        RedisNews(redis_url, TIMEOUT_S),
    )
    changing = Database(database.url, news=news)
    tenants, keys = TenantService(changing, clock), KeyService(changing, secrets, clock)
    tenant = await tenants.create("acme")
    key = await keys.create(tenant.id, (await tenants.default_project(tenant)).id)
    async with (
        worker(database.url, redis_url, home) as one,
        worker(database.url, redis_url, home) as two,
    ):
        stand = Stand([one, two], tenants, keys, LimitService(changing, clock), tenant.id, key)
        await stand.until_all(True)
        yield stand
    await news.close()
    await changing.close()


@pytest.fixture
async def stand(database: Database, redis_url: str, tmp_path: Path) -> AsyncIterator[Stand]:
    async with stand_on(database, redis_url, tmp_path) as stand:
        yield stand


async def test_revoked_key_ends_in_every_process_before_any_cache_does(stand: Stand) -> None:
    await stand.keys.revoke(stand.key.id)
    await stand.until_all(False)


async def test_suspended_tenant_is_refused_everywhere_and_comes_back(stand: Stand) -> None:
    await stand.tenants.move(COMMAND_LINE, stand.tenant_id, "suspended")
    await stand.until_all(False)
    await stand.tenants.move(COMMAND_LINE, stand.tenant_id, "active")
    await stand.until_all(True)


async def test_changed_limit_binds_in_every_process_at_once(stand: Stand) -> None:
    assert [await w.limits_of(stand.tenant_id) for w in stand.workers] == [(), ()]
    of = Subject(stand.tenant_id, "tenant", stand.tenant_id)
    await stand.limits.set(of, "requests_per_minute", 5, strict=False)

    async def is_seen() -> bool:
        return all([await w.limits_of(stand.tenant_id) for w in stand.workers])

    await until(is_seen)


async def test_command_line_tells_the_servers(
    stand: Stand, database: Database, redis_url: str, tmp_path: Path
) -> None:
    environment = {
        "LORAPLEX_HOME": str(tmp_path),
        "LORAPLEX_DATABASE_URL": database.url,
        "LORAPLEX_REDIS_URL": redis_url,
    }
    command = ["keys", "revoke", stand.key.id]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, command, env=environment)
    assert done.exit_code == 0, done.output
    await stand.until_all(False)


async def test_redis_that_was_restarted_carries_news_again(
    database: Database, tmp_path: Path
) -> None:
    with running_redis() as server:
        async with stand_on(database, server.url, tmp_path) as stand:
            await asyncio.to_thread(server.kill)
            for each in stand.workers:
                await until(lambda each=each: not each.news.is_listening.is_set())
            await asyncio.to_thread(server.start)
            for each in stand.workers:
                await asyncio.wait_for(each.news.is_listening.wait(), 60)
            await stand.keys.revoke(stand.key.id)
            await stand.until_all(False)


async def test_without_redis_a_key_ends_when_the_caches_do(
    database: Database, tmp_path: Path
) -> None:
    with running_redis() as server:
        async with stand_on(database, server.url, tmp_path) as stand:
            await asyncio.to_thread(server.kill)
            await stand.keys.revoke(stand.key.id)  # does not fail
            assert [await w.knows(stand.key) for w in stand.workers] == [True, True]
            for each in stand.workers:
                each.clock.advance(CACHE_S)
            assert [await w.knows(stand.key) for w in stand.workers] == [False, False]


async def rest_of(stream: AsyncStream[ChatCompletionChunk]) -> None:
    async for _ in stream:
        pass


async def test_suspension_through_one_process_ends_the_streams_of_another(
    make_app: Callable[..., FastAPI],
    keys: Seeded,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loraplex_platform.openai.live.CHECK_S", 60.0)
    change = {"redis_url": redis_server.url, "redis_timeout_s": TIMEOUT_S}
    engine = letter_engine(step_s=0.05)
    one, two = make_app(**change), make_app(engine=engine, **change)
    async with listening(one), listening(two) as base_url, AsyncExitStack() as stack:
        news: RedisNews = two.state.database.news
        await asyncio.wait_for(news.is_listening.wait(), 60)
        client = Served(two, engine, base_url, keys, stack).client()
        ask = {"model": BASE, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        stream = await client.chat.completions.create(**ask, max_tokens=2000)
        acme = await one.state.tenants.get("acme")
        await anext(aiter(stream))
        await one.state.tenants.move(COMMAND_LINE, acme.id, "suspended")
        with pytest.raises(APIError, match="suspended"):
            await asyncio.wait_for(rest_of(stream), 60)
