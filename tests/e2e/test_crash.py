"""The engine dies under load: the API stays, its probe tells the truth, usage is written once."""

import asyncio

import openai
import pytest
from openai import AsyncOpenAI
from tests.e2e.stand import Served, engine_of, until

from loraplex_engine.client import RemoteEngine
from loraplex_engine.messages import EngineStats

pytestmark = pytest.mark.slow

LONG = {
    "messages": [{"role": "user", "content": "go on"}],
    "max_tokens": 1500,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}


def client_of(served: Served) -> AsyncOpenAI:
    key = served.demo["tenants"]["acme"]["api_key"]
    return AsyncOpenAI(base_url=served.base_url, api_key=key, max_retries=0, timeout=120)


async def idle(engine: RemoteEngine) -> EngineStats:
    """Statistics once nothing is held, or the last that were seen."""
    for _ in range(100):
        stats = engine.stats
        if stats is not None and not stats.sequences and stats.free_blocks == stats.num_blocks:
            return stats
        await asyncio.sleep(0.1)
    raise AssertionError(engine.stats)


async def test_engine_killed_under_load(served: Served) -> None:
    client = client_of(served)
    usage_before = served.rows("select count(*) from usage_event")[0][0]
    assert isinstance(usage_before, int)
    model = served.model.name
    streams = [
        await client.chat.completions.create(model=model, stream=True, **LONG)  # type: ignore[call-overload]
        for _ in range(4)
    ]
    for stream in streams:
        await anext(stream)
        await anext(stream)
    short = LONG | {"max_tokens": 200}
    unsent = [
        asyncio.create_task(client.chat.completions.create(model=model, **short))  # type: ignore[call-overload]
        for _ in range(4)
    ]
    await asyncio.sleep(0.3)
    api = served.child("loraplex_platform.api").pid

    served.child("loraplex_engine").kill()

    await asyncio.to_thread(until, lambda: served.readiness() == 503, 2, "a red probe")
    for stream in streams:
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
    answers = await asyncio.gather(*unsent)
    assert [answer.usage.completion_tokens for answer in answers] == [200] * 4
    await asyncio.to_thread(until, lambda: served.readiness() == 200, 60, "a green probe")
    assert served.child("loraplex_platform.api").pid == api

    async with engine_of(served) as engine:
        stats = await idle(engine)
        assert stats.free_slots == stats.num_slots
    new = "select outcome, attempts from usage_event order by started_at, request_id"
    await asyncio.to_thread(
        until, lambda: len(served.rows(new)) == usage_before + 8, 5, "eight usage events"
    )
    outcomes = served.rows(new)[usage_before:]
    assert sorted(attempts for _, attempts in outcomes) == [1] * 4 + [2] * 4  # type: ignore[type-var]
    await client.close()


async def test_third_of_64_streams_hangs_up_and_nothing_is_held(served: Served) -> None:
    client = client_of(served)

    async def stream(number: int) -> str:
        text, chunks = "", 0
        async with await client.chat.completions.create(
            model=served.model.name,
            stream=True,
            **LONG | {"max_tokens": 60, "messages": [{"role": "user", "content": str(number)}]},  # type: ignore[call-overload]
        ) as answer:
            async for chunk in answer:
                text += (chunk.choices and chunk.choices[0].delta.content) or ""
                chunks += 1
                if number % 3 == 0 and chunks == 10:
                    return text
        assert chunk.choices[0].finish_reason == "length"
        return text

    together = await asyncio.gather(*(stream(number) for number in range(64)))
    async with engine_of(served) as engine:
        stats = await idle(engine)
        assert (stats.running, stats.waiting) == (0, 0)
        assert stats.free_slots == stats.num_slots
    alone = [await stream(number) for number in range(8)]
    assert alone[1:3] + alone[4:6] == together[1:3] + together[4:6]
    await client.close()
