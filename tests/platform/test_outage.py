"""Postgres goes away under a running API, and comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from openai import AsyncOpenAI
from tests.platform_stand import (
    BASE,
    NO_TLS,
    Seeded,
    Served,
    letter_engine,
    listening,
    seed,
    usage_of,
)
from tests.services import PostgresServer, running_postgres
from tests.until import until

from loraplex_admin.app import mount_console
from loraplex_admin.cookies import LOOPBACK
from loraplex_platform.app import create_app
from loraplex_platform.auth.admin_keys import AdminKeyService
from loraplex_platform.auth.authenticator import OUTAGE_S
from loraplex_platform.config import Settings
from loraplex_platform.db import database as db
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.rest.route import PREFIX

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Stand:
    server: PostgresServer
    served: Served
    http: httpx2.AsyncClient
    admin_key: str
    clock: ManualClock

    async def chat(self, key: str, tokens: int = 3) -> httpx2.Response:
        message = {"role": "user", "content": "hi"}
        body = {"model": "support", "messages": [message], "max_tokens": tokens}
        return await self.http.post("/v1/chat/completions", json=body, headers=bearer(key))

    async def get(self, path: str, key: str | None = None) -> httpx2.Response:
        return await self.http.get(path, headers=bearer(key) if key else {})


@pytest.fixture
async def stand(
    tmp_path: Path, model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stand]:
    """An API of its own on a Postgres of its own; nobody is asked twice by a client."""
    monkeypatch.setattr(db, "CONNECT_S", 60)  # one that is killed refuses at once
    with running_postgres() as server:
        url = await asyncio.to_thread(server.create_database, "outage")
        await asyncio.to_thread(upgrade, url)
        settings = Settings(home=tmp_path, database_url=url, engine_wait_s=1.0)
        keys, clock = await seed(settings), ManualClock()
        app = create_app(settings, letter_engine(), model, clock=clock)
        mount_console(app)
        admins: AdminKeyService = app.state.admin_keys
        admin_key = str(await admins.create("ci", "owner"))
        async with listening(app) as base_url, AsyncExitStack() as stack:
            http = httpx2.AsyncClient(base_url=base_url, verify=NO_TLS, timeout=60)
            await stack.enter_async_context(http)
            served = Served(app, app.state.engine, base_url, keys, stack)
            yield Stand(server, served, http, admin_key, clock)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def assert_away(answer: httpx2.Response) -> None:
    """As the documents say it: OpenAI's error, and when to come back."""
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("service_unavailable_error", "server_is_overloaded")
    assert answer.headers["retry-after"] == "1"
    assert "postgres" not in answer.text.lower()


async def test_cached_keys_serve_others_are_told_503_and_nothing_is_lost(stand: Stand) -> None:
    keys: Seeded = stand.served.keys
    assert (await stand.chat(keys.acme)).status_code == 200
    await asyncio.to_thread(stand.server.kill)

    assert (await stand.chat(keys.acme)).status_code == 200, "a key that was good a moment ago"
    assert_away(await stand.chat(keys.globex))
    assert_away(await stand.get("/v1/files", keys.acme))
    assert_away(await stand.get(f"{PREFIX}/tenants", stand.admin_key))
    ready = await stand.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["database"]) == (503, "unreachable")
    assert (await stand.get("/livez")).status_code == 200
    stand.clock.advance(OUTAGE_S)
    assert_away(await stand.chat(keys.acme))

    await asyncio.to_thread(stand.server.start)
    await until(lambda: is_ready(stand))
    for key in (keys.acme, keys.globex):
        assert (await stand.chat(key)).status_code == 200
    assert (await stand.get(f"{PREFIX}/tenants", stand.admin_key)).status_code == 200
    await until(lambda: are_metered(stand, 4))


async def is_ready(stand: Stand) -> bool:
    return (await stand.get("/readyz")).status_code == 200


async def are_metered(stand: Stand, count: int) -> bool:
    """As many requests as were answered, once each, with what they got."""
    events = await usage_of(stand.served.app)
    assert len(events) <= count
    return [event.completion_tokens for event in events] == [3] * count


async def test_a_stream_at_work_ends_well_and_is_billed(stand: Stand) -> None:
    stand.served.engine.step_s = 0.02
    client: AsyncOpenAI = stand.served.client()
    stream = await client.chat.completions.create(
        model=BASE, messages=[{"role": "user", "content": "hi"}], max_tokens=40, stream=True
    )
    pieces = [await anext(stream)]
    await asyncio.to_thread(stand.server.kill)
    pieces += [piece async for piece in stream]
    assert pieces[-1].choices[0].finish_reason == "length"
    await asyncio.to_thread(stand.server.start)

    async def is_billed() -> bool:
        events = await usage_of(stand.served.app) if await is_ready(stand) else []
        return [event.completion_tokens for event in events] == [40]

    await until(is_billed)


async def test_the_console_says_so_and_comes_back(stand: Stand) -> None:
    headers = {"cookie": f"{LOOPBACK}={'x' * 43}"}
    await asyncio.to_thread(stand.server.kill)
    answer = await stand.http.get("/admin/", headers=headers)
    assert (answer.status_code, "The database is away." in answer.text) == (503, True)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    await asyncio.to_thread(stand.server.start)
    await until(lambda: is_ready(stand))
    assert (await stand.http.get("/admin/", headers=headers)).status_code == 303
