"""A thousand mixed requests on the real engine: what is billed is what the engine counted."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import openai
import pytest
from openai import AsyncOpenAI
from tests.e2e.stand import Served, engine_of, holds_nothing, serving, until_stats
from tests.until import until

from loraplex_engine.messages import EngineStats

pytestmark = pytest.mark.slow

TENANTS = ("acme", "globex", "initech")
TIERS = ("priority", "default", "flex")
BLOCK_BYTES = 4096  # of the tiny model
NUM_REQUESTS, IN_FLIGHT = 1_000, 24
TOKENS = "prompt_tokens, cached_tokens, completion_tokens"
PAID = f"select tenant_id, {TOKENS} from usage_event where outcome != 'error' or delivered"


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Served]:
    """A server whose engine has room for a few requests at once, so that it preempts."""
    home = tmp_path_factory.mktemp("metered") / "home"
    room = {
        "MAX_MODEL_LEN": 256,
        "CPU_KV_CACHE_BYTES": 24 * BLOCK_BYTES,
        "HOST_KV_BYTES": 0,  # what is preempted is computed again
        "MAX_NUM_SEQS": 16,
    }
    with serving(home, model, **room) as running:
        yield running


async def asked(served: Served, clients: dict[str, AsyncOpenAI], number: int) -> str:
    """One of many: whole, streamed, hung up on, wrong or too long; says which."""
    chance = random.Random(number)
    client = clients[TENANTS[number % 3]]
    request = {
        "model": served.model.name,
        "messages": [{"role": "user", "content": "x" * chance.randint(1, 60)}],
        "max_tokens": chance.randint(1, 40),
        "service_tier": TIERS[chance.randrange(3)],
        "seed": number,
        "extra_body": {"ignore_eos": True},
    }
    kind = chance.choices(("whole", "streamed", "hung up", "wrong", "too long"), (5, 3, 3, 1, 1))[0]
    if kind == "hung up":  # never comes to its end first
        request["max_tokens"] = 150
    match kind:
        case "whole":
            await client.chat.completions.create(**request)
        case "wrong":
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(**request | {"model": "no-such-model"})
        case "too long":
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(**request | {"max_tokens": 1_000})
        case _:
            most = 10**6 if kind == "streamed" else chance.randint(0, 12)
            stream = await client.chat.completions.create(stream=True, **request)
            async with stream:
                async for _ in stream:
                    if (most := most - 1) < 0:
                        break
    return kind


def billed(served: Served) -> dict[str, tuple[int, ...]]:
    """Prompt, cached and completion tokens that each tenant pays for."""
    sums: dict[str, list[int]] = {}
    for tenant, *tokens in served.rows(PAID):
        before = sums.setdefault(str(tenant), [0, 0, 0])
        sums[str(tenant)] = [a + int(b) for a, b in zip(before, tokens, strict=True)]
    return {tenant: tuple(tokens) for tenant, tokens in sums.items()}


def counted(stats: EngineStats) -> dict[str, tuple[int, ...]]:
    return {
        tenant: (tokens.prompt, tokens.cached, tokens.completion)
        for tenant, tokens in stats.tokens_by_tenant
    }


async def written(served: Served, number: int) -> None:
    """Until so many events are there: the last ones are on their way when the engine is idle."""
    await until(lambda: served.rows("select count(*) from usage_event") == [(number,)])


async def test_a_thousand_mixed_requests_are_billed_as_counted(cramped: Served) -> None:
    served = cramped
    turn = asyncio.Semaphore(IN_FLIGHT)
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(served.async_client(name)) for name in TENANTS
        }

        async def ask(number: int) -> str:
            async with turn:
                return await asked(served, clients, number)

        kinds = Counter(await asyncio.gather(*(ask(number) for number in range(NUM_REQUESTS))))
    assert min(kinds[kind] for kind in ("whole", "streamed", "hung up", "wrong", "too long")) > 40
    admitted = kinds["whole"] + kinds["streamed"] + kinds["hung up"]
    async with engine_of(served) as engine:
        await until_stats(engine, holds_nothing)
        await written(served, admitted)
        stats = await until_stats(engine, holds_nothing)
    assert billed(served) == counted(stats)
    assert stats.preemptions > 0
    assert stats.tokens.recomputed > 0
    aborted = served.rows("select count(*) from usage_event where outcome = 'disconnect'")[0][0]
    assert aborted > 40


async def streamed_to_its_end(client: AsyncOpenAI, request: dict[str, object]) -> int:
    """The tokens that were delivered, whatever the end was."""
    delivered = 0
    try:
        stream = await client.chat.completions.create(stream=True, **request)  # type: ignore[call-overload]
        async with stream:
            async for chunk in stream:
                for choice in chunk.choices:
                    delivered += len((choice.model_extra or {}).get("token_ids") or ())
    except openai.APIError:
        pass
    return delivered


def all_are_midway(stats: EngineStats) -> bool:
    return sum(sequence.completion_tokens > 0 for sequence in stats.sequences) == 6


async def test_a_crash_bills_what_was_delivered_and_retries_once(served: Served) -> None:
    """The killed engine's work is the tenants' as far as they got it, and ours beyond that."""
    async with served.async_client("acme") as client:
        await crash(served, client)


async def crash(served: Served, client: AsyncOpenAI) -> None:
    before = {row[0] for row in served.rows("select request_id from usage_event")}
    request: dict[str, object] = {
        "model": served.model.name,
        "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": 1_900,  # far more than are made between the look and the kill
        "extra_body": {"ignore_eos": True, "return_token_ids": True},
    }
    async with engine_of(served) as engine:
        streams = [asyncio.create_task(streamed_to_its_end(client, request)) for _ in range(3)]
        wholes = [
            asyncio.create_task(client.chat.completions.create(**request))  # type: ignore[call-overload]
            for _ in range(3)
        ]
        running = await until_stats(engine, all_are_midway)
        served.child("loraplex_engine").send_signal(signal.SIGKILL)
        delivered = await asyncio.gather(*streams)
        answers = await asyncio.gather(*wholes)
        stats = await until_stats(
            engine, lambda s: s.engine_id != running.engine_id and holds_nothing(s)
        )
    await written(served, len(before) + 6)
    columns = "request_id, completion_tokens, discarded_tokens, attempts, outcome"
    rows = served.rows(f"select {columns} from usage_event")
    events = [Ended(*row) for row in rows if row[0] not in before]
    broken = [event for event in events if event.attempts == 1]
    retried = [event for event in events if event.attempts == 2]
    assert sorted(event.completion for event in broken) == sorted(delivered)
    assert {event.outcome for event in broken} == {"error"}
    assert [event.completion for event in retried] == [1_900] * 3
    assert all(answer.usage.completion_tokens == 1_900 for answer in answers)
    assert all(event.discarded > 0 for event in retried)
    [(acme,)] = served.rows("select id from tenant where name = 'acme'")
    assert counted(stats)[str(acme)][2] == 3 * 1_900
    known = sum(event.discarded for event in retried) + sum(delivered)
    assert known >= sum(s.completion_tokens for s in running.sequences)  # the dead one's last word


async def test_a_server_that_is_told_to_stop_writes_down_what_it_served(
    tmp_path: Path, model: Path
) -> None:
    """SIGTERM amid six streams: each has its event, with all that the client got."""
    with serving(tmp_path / "home", model) as served:
        request: dict[str, object] = {
            "model": served.model.name,
            "messages": [{"role": "user", "content": "go on"}],
            "max_tokens": 7_000,  # far more than are made before the signal
            "extra_body": {"ignore_eos": True, "return_token_ids": True},
        }
        async with served.async_client("acme") as client:
            async with engine_of(served) as engine:
                streams = [
                    asyncio.create_task(streamed_to_its_end(client, request)) for _ in range(6)
                ]
                await until_stats(engine, all_are_midway)
            served.process.send_signal(signal.SIGTERM)
            delivered = await asyncio.gather(*streams)
            assert await asyncio.to_thread(served.process.wait, 60) == 0, served.log.read_text()
        billed = [count for (count,) in served.rows("select completion_tokens from usage_event")]
        assert len(billed) == 6
        assert all(had <= paid for had, paid in zip(sorted(delivered), sorted(billed), strict=True))
        assert min(billed) > 0
        assert list((served.home / "spool").iterdir()) == []


class Ended(NamedTuple):
    """A usage event's last word."""

    request_id: str
    completion: int
    discarded: int
    attempts: int
    outcome: str
