"""The twin keeps the promises of EngineClient."""

import asyncio
from dataclasses import replace

import pytest
from tests import leaping_time

from loraplex_engine.client import EngineClient
from loraplex_engine.errors import EngineUnavailable
from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import Abort, Finished, Generate, SamplingParams, TokenEvent

REQUEST = Generate(
    request_id="r1",
    prompt_ids=tuple(range(40)),
    sampling=SamplingParams(max_tokens=8, seed=7),
    tenant="t",
    project="p",
    cache_scope="aa",
)


async def collect(engine: EngineClient, request: Generate) -> list[TokenEvent | Finished]:
    return [event async for event in engine.generate(request)]


def tokens(events: list[TokenEvent | Finished]) -> list[int]:
    return [t for event in events if isinstance(event, TokenEvent) for t in event.token_ids]


def text(events: list[TokenEvent | Finished]) -> str:
    return "".join(event.text for event in events if isinstance(event, TokenEvent))


def last(events: list[TokenEvent | Finished]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


async def test_tokens_depend_on_the_seed_alone() -> None:
    first = await collect(FakeEngine(), REQUEST)
    again = await collect(FakeEngine(), replace(REQUEST, request_id="r2"))
    other = await collect(
        FakeEngine(), replace(REQUEST, sampling=SamplingParams(max_tokens=8, seed=8))
    )
    assert tokens(first) == tokens(again) != tokens(other)
    assert last(first).finish_reason == "length"


async def test_stop_string_across_tokens_ends_the_text_before_it() -> None:
    whole = text(await collect(FakeEngine(), REQUEST))
    cut = whole.index(" ", 1)  # the border between the first two tokens
    stop = whole[cut - 1 : cut + 2]
    events = await collect(
        FakeEngine(),
        replace(REQUEST, sampling=SamplingParams(max_tokens=8, seed=7, stop=(stop,))),
    )
    assert text(events) == whole[: cut - 1]
    assert (last(events).finish_reason, last(events).stop_reason) == ("stop", stop)


async def test_abort_ends_with_a_last_word() -> None:
    engine = FakeEngine()
    events = []
    async for event in engine.generate(REQUEST):
        events.append(event)
        if len(events) == 2:
            await engine.send(Abort("r1"))
    assert (last(events).finish_reason, last(events).completion_tokens) == ("abort", 2)
    assert engine.num_running == 0


async def test_prefix_is_shared_within_a_scope_only() -> None:
    engine = FakeEngine()
    await collect(engine, REQUEST)
    assert last(await collect(engine, REQUEST)).cached_tokens == 32
    assert last(await collect(engine, replace(REQUEST, cache_scope="bb"))).cached_tokens == 0
    assert last(await collect(engine, replace(REQUEST, adapter="v1"))).cached_tokens == 0


def test_death_midway_raises_in_every_stream_and_restart_serves_again() -> None:
    leaping_time.run(die_and_restart())


async def die_and_restart() -> None:
    engine = FakeEngine()
    engine.die_after, engine.restart_s = 5, 0.01
    streams = [collect(engine, replace(REQUEST, request_id=f"r{i}")) for i in range(3)]
    results = await asyncio.gather(*streams, return_exceptions=True)
    assert [type(r) for r in results] == [EngineUnavailable] * 3
    assert (engine.hello, engine.stats) == (None, None)
    with pytest.raises(EngineUnavailable):
        await collect(engine, REQUEST)
    await asyncio.sleep(0.02)
    assert last(await collect(engine, REQUEST)).finish_reason == "length"
