"""Two API processes and a bare client share one engine; who vanishes leaves nothing behind."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from openai import AsyncOpenAI
from tests.e2e.stand import (
    Served,
    engine_of,
    environment,
    free_port,
    holds_nothing,
    readiness,
    until_stats,
)
from tests.until import wait_until

from loraplex_engine.client import RemoteEngine
from loraplex_engine.messages import Finished, Generate, SamplingParams

pytestmark = pytest.mark.slow

LONG = Generate("bare", (5, 6, 7), SamplingParams(300, ignore_eos=True), "t", "p", "s")


GREETING = [{"role": "user", "content": "hello"}]


@pytest.fixture
def second_api(served: Served) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    port = free_port()
    env = environment(
        served.home,
        MODEL=served.model,
        PORT=port,
        ENGINE_ADDRESS=f"ipc://{served.home}/engine.sock",
    )
    process = subprocess.Popen([sys.executable, "-m", "loraplex_platform.api"], env=env)
    try:
        wait_until(lambda: readiness(port) == 200, what="the second API")
        yield process, f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


async def answer(client: AsyncOpenAI, model: str) -> str:
    answer = await client.chat.completions.create(
        model=model,
        messages=GREETING,  # type: ignore[arg-type]
        max_tokens=100,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return str(answer.choices[0].message.content)


async def finished(engine: RemoteEngine) -> Finished:
    async with aclosing(engine.generate(LONG)) as events:
        *_, last = [event async for event in events]
    assert isinstance(last, Finished)
    return last


async def test_two_apis_and_a_bare_client_share_an_engine(
    served: Served, second_api: tuple["subprocess.Popen[bytes]", str]
) -> None:
    _, url = second_api
    async with (
        engine_of(served) as bare,
        served.async_client("globex") as first,
        served.async_client("globex", url) as second,
    ):
        end, *texts = await asyncio.gather(
            finished(bare), *(answer(client, served.model.name) for client in (first, second) * 2)
        )
    assert end.completion_tokens == 300
    assert len(set(texts)) == 1


async def test_vanished_clients_sequences_are_soon_gone(
    served: Served, second_api: tuple["subprocess.Popen[bytes]", str]
) -> None:
    process, url = second_api
    async with (
        engine_of(served) as bare,
        served.async_client("globex", url) as client,
        await client.chat.completions.create(
            model=served.model.name,
            messages=GREETING,  # type: ignore[arg-type]
            max_tokens=6000,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream,
    ):
        await anext(stream)
        await until_stats(bare, lambda stats: stats.running == 1)

        process.kill()

        await until_stats(bare, holds_nothing)  # its 6,000 tokens would take far longer
