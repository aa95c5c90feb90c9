"""64 clients over real HTTP, three tenants with their own adapters, a third of them hanging up."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest
from openai import AsyncOpenAI
from tests.e2e.stand import Served, engine_of, holds_nothing, serving, until_stats
from tests.until import wait_until

from loraplex_engine.messages import DropAdapter

pytestmark = pytest.mark.slow

NUM_CLIENTS = 64
NUM_TOKENS = 20
NEVER_REACHED = 400  # tokens that those who hang up ask for
PROMPTS = (
    "What is the tallest mountain in Europe?",
    "How many planes are there per airline?",
    "My dog does not eat. What can I do?",
)


class Question(NamedTuple):
    tenant: str
    model: str
    prompt: str
    temperature: float


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo on all cores, with room for all clients in one step."""
    home = tmp_path_factory.mktemp("streams") / "home"
    with serving(home, None, THREADS="", MAX_NUM_SEQS=NUM_CLIENTS) as running:
        yield running


def questions_of(served: Served) -> list[Question]:
    """Each tenant asks its own adapter all, and the base model the last; some answers are sampled."""
    asked = []
    for tenant, access in served.demo["tenants"].items():
        models = [access["model"]] * len(PROMPTS) + [served.demo["base_model"]]
        for number, model in enumerate(models):
            asked.append(Question(tenant, model, PROMPTS[number % len(PROMPTS)], number % 2 * 0.8))
    return asked


async def heard(
    client: AsyncOpenAI,
    question: Question,
    opened: asyncio.Barrier,
    leaves_after: int | None = None,
) -> list[int]:
    """Token ids of a streamed answer; who leaves hangs up after so many."""
    tokens: list[int] = []
    async with await client.chat.completions.create(
        model=question.model,
        messages=[{"role": "user", "content": question.prompt}],
        max_tokens=NUM_TOKENS if leaves_after is None else NEVER_REACHED,
        temperature=question.temperature,
        seed=11,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    ) as chunks:
        await opened.wait()
        async for chunk in chunks:
            tokens += getattr(chunk.choices[0], "token_ids", None) or ()
            if leaves_after is not None and len(tokens) >= leaves_after:
                break
    return tokens


async def test_survivors_of_64_streams_get_their_solo_tokens_and_nothing_is_held(
    demo: Served,
) -> None:
    questions = questions_of(demo)
    chosen = random.Random(5).choices(questions, k=NUM_CLIENTS)
    leaving = [1 + number % 13 if number % 3 == 0 else None for number in range(NUM_CLIENTS)]
    all_are_open = asyncio.Barrier(NUM_CLIENTS)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(engine_of(demo))
        clients = {
            tenant: await stack.enter_async_context(demo.async_client(tenant))
            for tenant in demo.demo["tenants"]
        }
        together = await asyncio.gather(
            *(
                heard(clients[q.tenant], q, all_are_open, n)
                for q, n in zip(chosen, leaving, strict=True)
            )
        )
        stats = await until_stats(engine, holds_nothing)
        assert len(stats.resident_adapters) == 3
        for version in stats.resident_adapters:
            await engine.send(DropAdapter(version))  # those that a sequence holds would stay
        await until_stats(engine, lambda stats: stats.free_slots == stats.num_slots)

        demo.child("loraplex_engine").kill()  # the next one has nothing of this in its cache
        await until_stats(engine, lambda now: now.engine_id != stats.engine_id)
        alone = {q: await heard(clients[q.tenant], q, asyncio.Barrier(1)) for q in questions}

    for question, leaves_after, tokens in zip(chosen, leaving, together, strict=True):
        assert len(tokens) == (leaves_after or NUM_TOKENS)
        assert tokens == alone[question][: len(tokens)]
    outcomes = "select outcome, count(*) from usage_event group by outcome"
    gone = sum(leaves is not None for leaves in leaving)
    await asyncio.to_thread(
        wait_until, lambda: dict(demo.rows(outcomes)).get("disconnect") == gone, what=outcomes
    )
    assert dict(demo.rows(outcomes)) == {
        "disconnect": gone, "length": NUM_CLIENTS - gone + len(questions),
    }  # fmt: skip
