"""Two API processes and a bare client share one engine; who vanishes leaves nothing behind."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI
from tests.e2e.stand import Served, engine_of, environment, free_port, readiness, until

from loraplex_engine.messages import Finished, Generate, SamplingParams

pytestmark = pytest.mark.slow

LONG = Generate("bare", (5, 6, 7), SamplingParams(300, ignore_eos=True), "t", "p", "s")


@pytest.fixture
def second_api(served: Served) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    port = free_port()
    env = environment(
        served.home,
        MODEL=served.model,
        PORT=port,
        ENGINE_ADDRESS=f"ipc://{served.home}/engine.sock",
    )
    process = subprocess.Popen([sys.executable, "-m", "loraplex_platform.api"], env=env)
    try:
        until(lambda: readiness(port) == 200, 60, "the second API")
        yield process, port
    finally:
        process.kill()
        process.wait()


async def answer(client: AsyncOpenAI, model: str) -> str:
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=100,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return str(answer.choices[0].message.content)


async def test_two_apis_and_a_bare_client_share_an_engine(
    served: Served, second_api: tuple["subprocess.Popen[bytes]", int]
) -> None:
    process, port = second_api
    key = served.demo["tenants"]["globex"]["api_key"]
    urls = (served.base_url, f"http://127.0.0.1:{port}/v1")
    clients = [AsyncOpenAI(base_url=url, api_key=key, max_retries=0) for url in urls]
    async with engine_of(served) as bare:

        async def everything() -> Finished:
            async for event in bare.generate(LONG):
                last = event
            assert isinstance(last, Finished)
            return last

        finished, *texts = await asyncio.gather(
            everything(), *(answer(client, served.model.name) for client in clients * 2)
        )
        assert finished.completion_tokens == 300
        assert len(set(texts)) == 1

        stream = await clients[1].chat.completions.create(
            model=served.model.name,
            messages=[{"role": "user", "content": "go on"}],
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(stream)
        process.kill()
        await asyncio.sleep(2)
        assert bare.stats is not None
        assert bare.stats.sequences == ()
        assert bare.stats.free_blocks == bare.stats.num_blocks
        await stream.close()
        for client in clients:
            await client.close()
