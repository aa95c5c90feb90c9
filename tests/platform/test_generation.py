"""Every end of a request writes its usage once and gives back what it held."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import fields, replace

import httpx2
import pytest
from fastapi import FastAPI
from openai import APIError, InternalServerError
from tests.platform_stand import Seeded, Served, letter_engine, listening, usage_of
from tests.until import until

from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import Abort, CheckAdapter, SetTenant, TenantShare
from loraplex_platform.admission.limiter import Actual, AdmitAll, Demand, Reservation
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.errors import RateLimited
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.tenants.schemas import TenantChange
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.facts import UsageFacts

PROMPT_TOKENS = len("<user\nhello>\n<assistant\n")  # <, > stand for special tokens
MakeApp = Callable[..., FastAPI]
CHAT = {"model": "support", "messages": [{"role": "user", "content": "hello"}]}


async def drained(served: Served) -> None:
    """Wait until the request in flight is settled."""
    async with asyncio.timeout(60):
        await served.app.state.inference.tasks.drain()


async def test_usage_is_written_before_the_answer_ends(served: Served) -> None:
    await served.client().chat.completions.create(**CHAT, max_tokens=4)
    [event] = await usage_of(served.app)
    assert (event.outcome, event.completion_tokens, event.attempts) == ("length", 4, 1)
    assert (event.model, event.tier, event.error_code) == ("support", "standard", None)
    assert event.ttft_s is not None
    assert 0 <= event.ttft_s <= event.total_s


async def test_hanging_up_on_a_stream_aborts_and_bills_what_was_made(served: Served) -> None:
    served.engine.step_s = 0.01
    stream = await served.client().chat.completions.create(**CHAT, max_tokens=1000, stream=True)
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 5:
            break
    await stream.close()
    await drained(served)
    [event] = await usage_of(served.app)
    assert event.outcome == "disconnect"
    assert event.completion_tokens == served.engine.num_generated < 1000
    assert served.engine.num_running == 0


async def test_hanging_up_before_the_first_token_aborts_a_whole_answer(served: Served) -> None:
    served.engine.step_s = 0.2
    asking = asyncio.create_task(served.client().chat.completions.create(**CHAT, max_tokens=100))
    await until(lambda: served.engine.num_running == 1)
    asking.cancel()
    await until(lambda: served.engine.num_running == 0)
    await drained(served)
    [event] = await usage_of(served.app)
    assert (event.outcome, served.engine.num_running) == ("disconnect", 0)
    told = [type(c) for c in served.engine.commands]
    assert [kind for kind in told if kind not in (SetTenant, CheckAdapter)] == [Abort]


async def test_hanging_up_on_a_whole_answer_bills_what_was_made(served: Served) -> None:
    served.engine.step_s = 0.01
    asking = asyncio.create_task(served.client().chat.completions.create(**CHAT, max_tokens=1000))
    await until(lambda: served.engine.num_generated >= 3)
    asking.cancel()
    await until(lambda: served.engine.num_running == 0)
    await drained(served)
    [event] = await usage_of(served.app)
    assert event.outcome == "disconnect"
    assert 3 <= event.completion_tokens == served.engine.num_generated < 1000


async def test_whole_answer_survives_one_death_of_the_engine(served: Served) -> None:
    expected = await served.client().chat.completions.create(**CHAT, max_tokens=9, seed=2)
    served.engine.die_after, served.engine.restart_s = 5, 0.2
    answer = await served.client().chat.completions.create(**CHAT, max_tokens=9, seed=2)
    assert answer.choices == expected.choices
    event = max(await usage_of(served.app), key=lambda e: e.started_at)
    assert (event.outcome, event.attempts, event.completion_tokens) == ("length", 2, 9)


async def test_unseeded_retry_draws_the_same_tokens(served: Served) -> None:
    served.engine.die_after, served.engine.restart_s = 3, 0.05
    await served.client().chat.completions.create(**CHAT, max_tokens=9)
    first, second = served.engine.requests
    assert first.request_id != second.request_id
    assert replace(second, request_id=first.request_id) == first


async def test_second_death_is_a_503_and_costs_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def come_back_doomed() -> None:
        FakeEngine.come_back(served.engine)
        served.engine.die_after = 0

    monkeypatch.setattr(served.engine, "come_back", come_back_doomed)
    served.engine.die_after, served.engine.restart_s = 0, 0.05
    with pytest.raises(InternalServerError) as caught:
        await served.client().chat.completions.create(**CHAT, max_tokens=3)
    assert (caught.value.status_code, caught.value.code) == (503, "server_is_overloaded")
    assert "retry-after" in caught.value.response.headers
    [event] = await usage_of(served.app)
    assert (event.outcome, event.error_code, event.attempts) == ("error", "unavailable", 2)
    assert (event.prompt_tokens, event.completion_tokens) == (0, 0)


async def test_stream_is_retried_when_nothing_was_sent(served: Served) -> None:
    served.engine.die_after, served.engine.restart_s = 0, 0.1
    stream = await served.client().chat.completions.create(**CHAT, max_tokens=4, stream=True)
    text = [c.choices[0].delta.content or "" async for c in stream]
    assert len("".join(text)) == 4
    [event] = await usage_of(served.app)
    assert (event.outcome, event.attempts) == ("length", 2)


async def test_stream_that_has_begun_ends_with_an_error_event(served: Served) -> None:
    served.engine.step_s = 0.01
    served.engine.die_after, served.engine.restart_s = 5, 0.1
    stream = await served.client().chat.completions.create(**CHAT, max_tokens=50, stream=True)
    chunks = []

    async def read_to_the_end() -> None:
        async for chunk in stream:
            chunks.append(chunk)

    with pytest.raises(APIError) as caught:
        await read_to_the_end()
    assert caught.value.code == "server_is_overloaded"
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    [event] = await usage_of(served.app)
    assert (event.outcome, event.error_code, event.attempts) == ("error", "unavailable", 1)
    assert event.completion_tokens == len(text) == 5
    assert event.prompt_tokens == PROMPT_TOKENS


async def test_adapter_that_cannot_be_loaded_is_an_error_with_a_status(served: Served) -> None:
    served.engine.unknown_adapters.add("acme-support")
    with pytest.raises(APIError):
        await served.client().chat.completions.create(**CHAT, max_tokens=4, stream=True)
    [event] = await usage_of(served.app)
    assert (event.outcome, event.error_code) == ("error", "unknown_adapter")


async def test_choices_of_one_request_are_one_event(served: Served) -> None:
    await served.client().chat.completions.create(**CHAT, max_tokens=4, n=3)
    [event] = await usage_of(served.app)
    assert (event.sequences, event.completion_tokens) == (3, 12)


async def test_two_hundred_open_streams_with_a_pool_of_five(
    make_app: MakeApp, keys: Seeded
) -> None:
    engine = letter_engine(step_s=1.0)
    app = make_app(engine, database_pool_size=5)
    async with listening(app) as base_url:
        port = int(base_url.rsplit(":", 1)[1])
        body = CHAT | {"max_tokens": 60, "stream": True}  # for as long as it may take to open all
        streams = [asyncio.create_task(raw_post(port, keys.acme, body)) for _ in range(200)]
        await until(lambda: engine.num_running == 200)
        # What looks after all requests reads for a moment.
        await until(lambda: app.state.database.num_checked_out == 0)
        assert engine.num_running == 200  # and a stream that held a connection would hold it still
        engine.step_s = 0.0
        assert all("data: [DONE]" in answer for answer in await asyncio.gather(*streams))

        async def all_is_written() -> bool:  # what the database is too busy for waits in the spool
            return len(await usage_of(app)) >= 200

        await until(all_is_written)
        assert len(await usage_of(app)) == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_suspending_a_tenant_ends_its_requests_and_no_others(
    served: Served, stream: bool
) -> None:
    served.engine.step_s = 0.02
    ask = {**CHAT, "max_tokens": 150, "stream": stream}

    async def end_of(key: str) -> object:
        try:
            answer = await served.client(key).chat.completions.create(**ask)
            return [chunk async for chunk in answer] if stream else answer  # type: ignore[attr-defined]
        except APIError as error:
            return error.code

    asked = asyncio.gather(end_of(served.keys.acme), end_of(served.keys.globex))
    await until(lambda: served.engine.num_running == 2 and served.engine.num_generated > 10)
    served.engine.step_s = 0.5  # neither comes to its end by itself
    tenants: TenantService = served.app.state.tenants
    await tenants.move(COMMAND_LINE, (await tenants.get("acme")).id, "suspended")
    await until(lambda: served.engine.num_running == 1)
    served.engine.step_s = 0.0
    async with asyncio.timeout(60):
        acme, globex = await asked
    assert acme == "account_suspended"
    assert not isinstance(globex, str)
    by_name = {event.adapter_version: event for event in await usage_of(served.app)}
    assert 0 < by_name["acme-support"].completion_tokens < 150
    assert by_name["globex-support"].completion_tokens == 150


async def raw_post(port: int, key: str, body: dict[str, object]) -> str:
    """The whole answer as it comes over the socket: an HTTP client costs more than the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\n"
        f"authorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


class CountingLimiter(AdmitAll):
    """Remembers what was reserved and settled."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.settled: list[Actual | None] = []
        self.is_full = False

    async def reserve(self, demand: Demand) -> Reservation:
        if self.is_full:
            raise RateLimited("Too many requests.", retry_after_s=1.5)
        self.open.add(demand.request_id)
        return Reservation(demand, {"x-ratelimit-remaining-requests": "7"})

    async def settle(self, reservation: Reservation, actual: Actual | None) -> None:
        self.open.remove(reservation.demand.request_id)
        self.settled.append(actual)


@pytest.mark.parametrize("fault", ["none", "death", "adapter"])
async def test_ticket_is_given_back_once_on_every_end(
    make_app: MakeApp, engine: FakeEngine, keys: Seeded, fault: str
) -> None:
    limiter = CountingLimiter()
    app = make_app(limiter=limiter, engine_wait_s=0.1)
    if fault == "death":
        engine.die_after = 2
    if fault == "adapter":
        engine.unknown_adapters.add("acme-support")
    response = await post(app, keys.acme, CHAT | {"max_tokens": 5})
    assert response.status_code == {"none": 200, "death": 503, "adapter": 400}[fault]
    assert (limiter.open, len(limiter.settled)) == (set(), 1)


async def test_rejection_says_when_to_come_back_and_leaves_no_trace(
    make_app: MakeApp, engine: FakeEngine, keys: Seeded
) -> None:
    limiter = CountingLimiter()
    limiter.is_full = True
    app = make_app(limiter=limiter)
    response = await post(app, keys.acme, CHAT)
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("2", "1500")
    assert (await usage_of(app), engine.requests) == ([], [])


async def test_limit_headers_come_with_the_answer(
    make_app: MakeApp, engine: FakeEngine, keys: Seeded
) -> None:
    app = make_app(limiter=CountingLimiter())
    for stream in (False, True):
        response = await post(app, keys.acme, CHAT | {"max_tokens": 1, "stream": stream})
        assert response.headers["x-ratelimit-remaining-requests"] == "7"


async def post(app: FastAPI, key: str, body: dict[str, object]) -> httpx2.Response:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        return await http.post(
            "/v1/chat/completions",
            content=json.dumps(body),
            headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
        )


async def test_tenants_standing_goes_with_its_requests_within_a_second(served: Served) -> None:
    database = served.app.state.database
    await served.client().chat.completions.create(**CHAT, max_tokens=1)
    change = TenantChange(weight=3.0, max_running=7, kv_share=0.25)
    tenant = await TenantService(database, SystemClock()).set("acme", change)
    await asyncio.sleep(1)
    await served.client().chat.completions.create(**CHAT, max_tokens=1)
    shares = [request.share for request in served.engine.requests]
    assert shares == [TenantShare(tenant.id), TenantShare(tenant.id, 3.0, 7, 0.25)]


@pytest.mark.parametrize(("best", "used"), [("standard", "default"), ("batch", "flex")])
async def test_tier_is_never_above_the_tenants_best(served: Served, best: str, used: str) -> None:
    service = TenantService(served.app.state.database, SystemClock())
    await service.set("acme", TenantChange(max_tier=best))
    create = served.client().chat.completions.create
    answers = [await create(**CHAT, max_tokens=1, service_tier=t) for t in ("auto", "priority")]
    assert [answer.service_tier for answer in answers] == [used, used]


async def test_facts_are_written_once_however_often(served: Served) -> None:
    await served.client().chat.completions.create(**CHAT, max_tokens=1)
    [event] = await usage_of(served.app)
    names = {field.name for field in fields(UsageFacts)}
    facts = UsageFacts(**{name: getattr(event, name) for name in names})
    await served.app.state.meter.record(facts)
    assert len(await usage_of(served.app)) == 1
