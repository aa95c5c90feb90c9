"""The engine dies under load: the API stays, its probe tells the truth, usage is written once."""

import asyncio
from collections import Counter

import openai
import pytest
from openai import AsyncOpenAI
from tests.e2e.stand import Served, engine_of, holds_nothing, until_stats
from tests.until import wait_until

from loraplex_engine.messages import EngineStats

pytestmark = pytest.mark.slow

# Far more tokens than any engine makes between the look that finds it at work and its end.
STREAMED_TOKENS = 6000
WHOLE_TOKENS = 2500


def asking(served: Served, max_tokens: int) -> dict[str, object]:
    return {
        "model": served.model.name,
        "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }


async def streamed(client: AsyncOpenAI, request: dict[str, object], begun: asyncio.Event) -> None:
    async with await client.chat.completions.create(stream=True, **request) as chunks:  # type: ignore[call-overload]
        async for _ in chunks:
            begun.set()


async def whole(client: AsyncOpenAI, request: dict[str, object]) -> int:
    answer = await client.chat.completions.create(**request)  # type: ignore[call-overload]
    tokens: int = answer.usage.completion_tokens
    return tokens


def eight_are_midway(stats: EngineStats) -> bool:
    return sum(sequence.completion_tokens > 0 for sequence in stats.sequences) == 8


async def readiness_is(served: Served, status: int) -> None:
    what = f"/readyz to say {status}"
    await asyncio.to_thread(wait_until, lambda: served.readiness() == status, what=what)


async def test_engine_killed_under_load(served: Served) -> None:
    before = {row[0] for row in served.rows("select request_id from usage_event")}
    api = served.child("loraplex_platform.api").pid
    async with served.async_client("acme") as client, engine_of(served) as engine:
        begun = [asyncio.Event() for _ in range(4)]
        request = asking(served, STREAMED_TOKENS)
        streams = [asyncio.create_task(streamed(client, request, event)) for event in begun]
        await asyncio.gather(*(event.wait() for event in begun))
        request = asking(served, WHOLE_TOKENS)
        wholes = [asyncio.create_task(whole(client, request)) for _ in range(4)]
        await until_stats(engine, eight_are_midway)

        served.child("loraplex_engine").kill()

        await readiness_is(served, 503)
        ends = await asyncio.gather(*streams, return_exceptions=True)
        assert [type(end) for end in ends] == [openai.APIError] * 4
        assert await asyncio.gather(*wholes) == [WHOLE_TOKENS] * 4
        await readiness_is(served, 200)
        assert served.child("loraplex_platform.api").pid == api
        await until_stats(engine, holds_nothing)

    def new_events() -> Counter[tuple[object, ...]]:
        rows = served.rows(
            "select request_id, outcome, attempts, completion_tokens > 0 from usage_event"
        )
        return Counter(row[1:] for row in rows if row[0] not in before)

    await asyncio.to_thread(
        wait_until, lambda: new_events().total() >= 8, what="eight usage events"
    )
    assert new_events() == {("error", 1, 1): 4, ("length", 2, 1): 4}
