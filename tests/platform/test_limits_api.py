"""Limits as a client of the API meets them."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from openai import RateLimitError
from tests.held_engine import HeldEngine
from tests.platform_stand import BASE, Seeded, Served, listening, usage_of
from tests.until import until

from loraplex_engine.fake import FakeEngine
from loraplex_platform.admission.effective import CACHE_S
from loraplex_platform.admission.limits import Level
from loraplex_platform.admission.rejections import SAMPLES_PER_KEY
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.app import create_app
from loraplex_platform.config import BadSetting, Settings, load_settings
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.tenants.service import TenantService

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ASK: dict[str, Any] = {"model": BASE, "messages": HELLO, "max_tokens": 2}
PROMPT_TOKENS = 1 + len("user\nhello") + 1 + 1 + 1 + len("assistant\n")


def limits_of(app: FastAPI) -> LimitService:
    return LimitService(app.state.database, SystemClock())


async def subject_of(app: FastAPI, level: Level, key: str) -> Subject:
    """acme as a whole, its project, or the key that is presented."""
    tenants = TenantService(app.state.database, SystemClock())
    acme = await tenants.get("acme")
    ids = {
        "tenant": acme.id,
        "project": (await tenants.default_project(acme)).id,
        "key": (await app.state.authenticator.authenticate(key)).key_id,
    }
    return Subject(acme.id, level, ids[level])


async def limit(
    served: Served, dimension: str, value: int, *, level: Level = "tenant", strict: bool = False
) -> None:
    subject = await subject_of(served.app, level, served.keys.acme)
    await limits_of(served.app).set(subject, dimension, value, strict=strict)


async def statuses(base_url: str, key: str, count: int, told: list[int] | None = None) -> list[int]:
    """So many requests, all at once; `told` grows as they are answered."""
    barrier = asyncio.Barrier(count)
    async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=count)) as http:

        async def ask() -> int:
            await barrier.wait()
            answer = await http.post(
                f"{base_url}/v1/chat/completions",
                json=ASK,
                headers={"authorization": f"Bearer {key}"},
            )
            if told is not None:
                told.append(answer.status_code)
            return answer.status_code

        return list(await asyncio.gather(*(ask() for _ in range(count))))


@pytest.fixture
def held_engine() -> HeldEngine:
    return HeldEngine()


@pytest.fixture
async def held_up(
    make_app: Callable[..., FastAPI], keys: Seeded, held_engine: HeldEngine
) -> AsyncIterator[Served]:
    """An app whose engine answers when it is let go."""
    app = make_app(engine=held_engine)
    async with listening(app) as base_url, AsyncExitStack() as stack:
        yield Served(app, held_engine, base_url, keys, stack)


async def in_flight(served: Served) -> int:
    """What the leases hold once every request is settled."""
    await served.app.state.inference.tasks.drain()
    return await held(served)


async def held(served: Served) -> int:
    principal = await served.app.state.authenticator.authenticate(served.keys.acme)
    limits = await served.app.state.inference._limiter._limits.of(principal)
    readings = await served.app.state.gate.read(principal.tenant_id, limits)
    return sum(
        r.used for r, at in zip(readings, limits, strict=True) if at.dimension.kind == "lease"
    )


async def test_answers_say_how_much_is_left(served: Served) -> None:
    await limit(served, "requests_per_minute", 60)
    await limit(served, "tokens_per_minute", 6000)
    answer = await served.client().chat.completions.with_raw_response.create(**ASK)
    assert {k: v for k, v in answer.headers.items() if k.startswith("x-ratelimit")} == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": str(6000 - PROMPT_TOKENS - 2),
        "x-ratelimit-reset-tokens": f"{(PROMPT_TOKENS + 2) * 10}ms",
    }


async def test_streams_say_it_too(served: Served) -> None:
    await limit(served, "requests_per_minute", 60)
    client = served.client()
    async with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as stream:
        assert stream.headers["x-ratelimit-remaining-requests"] == "59"


async def test_a_429_names_the_limit_and_when_to_come_back(served: Served) -> None:
    await limit(served, "requests_per_minute", 2, level="key")
    client = served.client()
    for _ in range(2):
        await client.chat.completions.create(**ASK)
    with pytest.raises(RateLimitError) as caught:
        await client.chat.completions.create(**ASK)
    assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "requests")
    assert "requests per minute of this key: Limit 2, Used 2, Requested 1" in caught.value.message
    headers = caught.value.response.headers
    assert headers["x-should-retry"] == "true"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    wait_ms = int(headers["retry-after-ms"])
    assert 0 < wait_ms <= 30_000
    assert headers["retry-after"] == str(math.ceil(wait_ms / 1000))


async def test_a_client_that_waits_as_told_gets_in(served: Served) -> None:
    await limit(served, "requests_per_minute", 20)
    client = served.client()
    await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(20)))
    patient = client.with_options(max_retries=1)  # waits for retry-after-ms by itself
    retries_taken = 0
    while not retries_taken:  # on a busy machine there is room for one more meanwhile
        answer = await patient.chat.completions.with_raw_response.create(**ASK)
        assert answer.status_code == 200
        retries_taken = answer.retries_taken
    assert retries_taken == 1


async def test_a_spent_quota_is_insufficient_and_not_retried(served: Served) -> None:
    await limit(served, "tokens_per_month", PROMPT_TOKENS + 2)
    client = served.client().with_options(max_retries=5)
    await client.chat.completions.create(**ASK)
    with pytest.raises(RateLimitError) as caught:
        await client.chat.completions.create(**ASK)
    assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
    assert caught.value.response.headers["x-should-retry"] == "false"
    samples = await _samples(served)
    assert len(samples) == 1


async def test_a_request_that_never_fits_is_not_told_to_wait(served: Served) -> None:
    await limit(served, "tokens_per_minute", PROMPT_TOKENS - 1)
    with pytest.raises(RateLimitError) as caught:
        await served.client().with_options(max_retries=5).chat.completions.create(**ASK)
    assert "retry-after" not in caught.value.response.headers
    assert "must be smaller" in caught.value.message


@pytest.mark.parametrize(
    ("dimension", "level"),
    [
        ("requests_per_minute", "key"),
        ("concurrent_requests", "project"),
        ("concurrent_requests", "tenant"),
    ],
)
async def test_a_hundred_requests_at_once_on_a_fresh_key(
    held_up: Served, held_engine: HeldEngine, dimension: str, level: Level
) -> None:
    await limit(held_up, dimension, 3, level=level)
    told = list[int]()
    asking = asyncio.create_task(statuses(held_up.base_url, held_up.keys.acme, 100, told))
    await until(lambda: len(told) >= 97)
    held_engine.let_go()
    answers = await asking
    assert (answers.count(200), answers.count(429)) == (3, 97)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("endpoint", ["chat/completions", "completions"])
async def test_tokens_bind_on_every_endpoint_streamed_or_not(
    served: Served, endpoint: str, is_stream: bool
) -> None:
    await limit(served, "tokens_per_minute", 3 * (PROMPT_TOKENS + 2))
    prompt = {"messages": HELLO} if endpoint.startswith("chat") else {"prompt": "x" * PROMPT_TOKENS}
    body = {"model": BASE, "max_tokens": 2, "stream": is_stream, **prompt}
    url, headers = f"{served.base_url}/v1/{endpoint}", _bearer(served)
    async with httpx2.AsyncClient(timeout=60) as http:
        answers = [await http.post(url, json=body, headers=headers) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert json.loads(answers[-1].text)["error"]["type"] == "tokens"


async def test_the_estimate_gives_way_to_what_was_used(served: Served) -> None:
    await limit(served, "tokens_per_day", 1000)
    client = served.client()
    await client.chat.completions.create(**ASK | {"max_tokens": 100, "stop": ["a", "e", "i", "o"]})
    (event,) = await usage_of(served.app)
    text = served.app.state.metrics.exposition().decode()
    assert "loraplex_reservation_ratio_count 1.0" in text
    principal = await served.app.state.authenticator.authenticate(served.keys.acme)
    limits = await served.app.state.inference._limiter._limits.of(principal)
    (reading,) = await served.app.state.gate.read(principal.tenant_id, limits)
    assert reading.used == event.prompt_tokens + event.completion_tokens < 100


async def test_what_the_client_says_of_itself_changes_no_limit(served: Served) -> None:
    await limit(served, "requests_per_minute", 2)
    names = ("x-end-user", "x-forwarded-for", "x-litellm-end-user-id", "openai-organization")
    async with httpx2.AsyncClient(timeout=60) as http:
        answers = [
            await http.post(
                f"{served.base_url}/v1/chat/completions",
                json=ASK | {"user": f"user-{i}"},
                headers=_bearer(served) | {name: f"other-{i}" for name in names},
            )
            for i in range(4)
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]


async def test_another_tenant_is_not_limited_by_ours(served: Served) -> None:
    await limit(served, "requests_per_minute", 0)
    await served.client(served.keys.globex).chat.completions.create(**ASK)
    with pytest.raises(RateLimitError):
        await served.client().chat.completions.create(**ASK)


@pytest.mark.slow
async def test_two_hundred_clients_that_hang_up_leave_nothing_in_flight(served: Served) -> None:
    served.engine.step_s = 0.05
    await limit(served, "concurrent_requests", 1000)
    url, body = f"{served.base_url}/v1/chat/completions", ASK | {"max_tokens": 500, "stream": True}
    async with httpx2.AsyncClient(limits=httpx2.Limits(max_connections=200), timeout=60) as http:

        async def hang_up() -> None:
            async with http.stream("POST", url, json=body, headers=_bearer(served)) as response:
                async for _ in response.aiter_bytes():
                    return

        await asyncio.gather(*(hang_up() for _ in range(200)))
    assert await in_flight(served) == 0
    text = served.app.state.metrics.exposition().decode()
    assert 'loraplex_inflight_requests{tier="standard"} 0.0' in text
    assert served.engine.num_running == 0


async def test_one_tenants_backlog_stops_at_its_queue_limit(
    held_up: Served, held_engine: HeldEngine
) -> None:
    async def nothing_is_held() -> bool:
        return await held(held_up) == 0

    await limit(held_up, "queued_requests", 4)
    ask, refused = (held_up.base_url, held_up.keys.acme), list[int]()
    first = asyncio.create_task(statuses(*ask, 10, refused))
    await until(lambda: len(refused) >= 6)
    assert await held(held_up) == 4
    held_engine.first.set()
    await until(nothing_is_held)  # once their first tokens are there they run, and no longer wait
    held_engine.first = asyncio.Event()
    second = asyncio.create_task(statuses(*ask, 5, refused))
    await until(lambda: len(refused) >= 6 + 1)
    assert held_engine.num_running == 4 + 4
    held_engine.let_go()
    assert ((await first).count(200), (await second).count(200)) == (4, 4)


async def test_a_changed_limit_is_seen_within_a_second(served: Served) -> None:
    await limit(served, "requests_per_minute", 0)
    with pytest.raises(RateLimitError):
        await served.client().chat.completions.create(**ASK)
    subject = await subject_of(served.app, "tenant", served.keys.acme)
    await limits_of(served.app).remove(subject, "requests_per_minute")
    await asyncio.sleep(CACHE_S)
    await served.client().chat.completions.create(**ASK)


async def test_a_flood_of_rejections_is_one_row_and_a_hundred_samples(served: Served) -> None:
    await limit(served, "requests_per_minute", 0)
    for _ in range(3):
        answers = await statuses(served.base_url, served.keys.acme, 40)
        assert answers == [429] * 40
        await served.app.state.rejections.flush()
    principal = await served.app.state.authenticator.authenticate(served.keys.acme)
    rows = await limits_of(served.app).rejections(principal.tenant_id, timedelta(hours=1))
    assert sum(row.count for row in rows) == 120
    assert len(rows) <= 2  # the minute may have turned
    assert len(await _samples(served)) == SAMPLES_PER_KEY
    assert await usage_of(served.app) == []


async def test_a_sample_answers_why_a_key_got_a_429(served: Served) -> None:
    await limit(served, "tokens_per_minute", PROMPT_TOKENS + 4)
    client = served.client()
    await client.chat.completions.create(**ASK)
    with pytest.raises(RateLimitError) as caught:
        await client.chat.completions.create(**ASK)
    (sample,) = await _samples(served)
    assert sample["request_id"] == caught.value.request_id
    assert sample["limit"].startswith("tokens_per_minute:tenant:ten_")
    assert (sample["value"], sample["requested"]) == (PROMPT_TOKENS + 4, PROMPT_TOKENS + 2)
    assert 0 < sample["retry_after_s"] < 60


async def test_a_restarted_server_knows_what_the_day_has_used(
    served: Served, settings: Settings, model: ServedModel
) -> None:
    await limit(served, "tokens_per_day", 2 * (PROMPT_TOKENS + 2))
    await served.client().chat.completions.create(**ASK)
    await usage_of(served.app)
    again = create_app(settings, FakeEngine(), model)
    async with listening(again) as base_url:
        answers = await statuses(base_url, served.keys.acme, 5)
    assert (answers.count(200), answers.count(429)) == (1, 4)


async def test_metrics_count_rejections_by_reason_and_tier(served: Served) -> None:
    await limit(served, "requests_per_minute", 1)
    await statuses(served.base_url, served.keys.acme, 3)
    await usage_of(served.app)
    text = served.app.state.metrics.exposition().decode()
    line = 'loraplex_rejections_total{reason="requests_per_minute",tier="standard"} 2.0'
    assert line in text
    assert "loraplex_limiter_seconds_count 3.0" in text
    assert "loraplex_reservation_ratio_count" in text
    assert "loraplex_limiter_degraded 0.0" in text


def test_several_workers_without_redis_are_refused() -> None:
    with pytest.raises(BadSetting, match="every process would admit the whole limit"):
        load_settings({"LORAPLEX_WORKERS": "2"})
    both = {"LORAPLEX_WORKERS": "2", "LORAPLEX_REDIS_URL": "redis://localhost"}
    assert load_settings(both).workers == 2


async def _samples(served: Served) -> list[dict[str, Any]]:
    await served.app.state.rejections.flush()
    principal = await served.app.state.authenticator.authenticate(served.keys.acme)
    rows = await limits_of(served.app).samples(principal.tenant_id)
    return [sample for row in rows for sample in row.samples]


def _bearer(served: Served) -> dict[str, str]:
    return {"authorization": f"Bearer {served.keys.acme}"}
