"""Server and client over a real socket, with a core that only counts."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from tests.engine.fake_core import HELLO, CountdownCore
from tests.until import until

from loraplex_engine import client as client_module
from loraplex_engine import wire
from loraplex_engine.client import RemoteEngine
from loraplex_engine.errors import EngineUnavailable, ProtocolError
from loraplex_engine.messages import (
    Abort,
    AdapterFailed,
    Finished,
    Generate,
    PreloadAdapter,
    SamplingParams,
    TokenEvent,
)
from loraplex_engine.server import STATS_PERIOD_S, EngineServer
from loraplex_engine.wire import ALIVE, MAGIC, decode, encode

ROOT = Path(__file__).parents[2]


def request(request_id: str, max_tokens: int = 5) -> Generate:
    return Generate(request_id, (1, 2, 3), SamplingParams(max_tokens), "acme", "default", "s")


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/e"


@pytest.fixture
def core(address: str, patience: None) -> Iterator[CountdownCore]:
    with serving(address) as core:
        yield core


@contextmanager
def serving(address: str) -> Iterator[CountdownCore]:
    core = CountdownCore()
    server = EngineServer(core, address)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield core
    server.drain(0.0)
    thread.join(60)
    assert not thread.is_alive()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[RemoteEngine]:
    client = RemoteEngine(address)
    await client.start()
    try:
        await until(lambda: client.stats is not None)
        yield client
    finally:
        await client.close()


async def answer(client: RemoteEngine, asked: Generate) -> list[TokenEvent | Finished]:
    return [event async for event in client.generate(asked)]


async def test_two_clients_get_their_own_events(core: CountdownCore, address: str) -> None:
    async with connected(address) as one, connected(address) as two:
        both = await asyncio.gather(
            *(answer(client, request(f"{name}{i}", 5 + i))
              for name, client in (("a", one), ("b", two)) for i in range(8))
        )  # fmt: skip
    assert one.hello is None
    for n, events in enumerate(both):
        *tokens, end = events
        assert [t.token_ids for t in tokens] == [(i,) for i in range(5 + n % 8)]
        assert isinstance(end, Finished)
        assert {e.request_id for e in events} == {f"{'ab'[n // 8]}{n % 8}"}


async def test_hello_comes_first_and_statistics_keep_coming(
    core: CountdownCore, address: str
) -> None:
    async with connected(address) as client:
        assert client.hello == HELLO
        times_s = list[float]()
        for _ in range(5):
            seen = client.stats
            assert seen is not None
            times_s.append(seen.engine_clock_s)
            await until(lambda seen=seen: client.stats not in (None, seen))
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    assert min(gaps_s) < 2 * STATS_PERIOD_S  # a busy machine may lengthen some


async def test_closing_the_iterator_aborts(core: CountdownCore, address: str) -> None:
    async with connected(address) as client:
        async with aclosing(client.generate(request("r", 100_000))) as events:
            await anext(events)
        await until(lambda: not core.has_work)  # long before its 100,000 steps


async def test_client_that_closes_is_forgotten_at_once(core: CountdownCore, address: str) -> None:
    """By the end of its connection: a missing heartbeat is not waited for."""
    async with connected(address) as client:
        events = client.generate(request("r", 100_000))
        await anext(events)
    await until(lambda: not core.has_work)
    with pytest.raises(EngineUnavailable):
        await anext(events)


async def test_bare_socket_speaks_the_protocol(core: CountdownCore, address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare:
        bare.connect(address)
        bare.send_multipart([MAGIC, encode([request("r", 2)])])
        seen: list[object] = []
        while not isinstance(seen[-1:], list) or not any(isinstance(e, Finished) for e in seen):
            assert await asyncio.to_thread(bare.poll, 60_000)
            seen += decode(bare.recv_multipart())
    assert seen[0] == HELLO
    assert [e.token_ids for e in seen if isinstance(e, TokenEvent)] == [(0,), (1,)]


async def test_other_protocol_is_told_and_not_obeyed(core: CountdownCore, address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare:
        bare.connect(address)
        bare.send_multipart([b"lpx99", encode([request("r")])])
        assert await asyncio.to_thread(bare.poll, 60_000)
        assert bare.recv_multipart() == [MAGIC, ALIVE]
    assert not core.has_work


@pytest.mark.parametrize(
    "frame", [[], [MAGIC], [b"lpx0", ALIVE], [MAGIC, b"\xff"], [MAGIC, encode([Abort("r")])[:-1]],
              [MAGIC, b"\x91\x92\xa3New\x80"]]
)  # fmt: skip
def test_what_is_not_understood_is_a_protocol_error(frame: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        decode(frame)


async def test_engine_of_another_protocol_is_reported(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/e"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.bind(address)
        client = RemoteEngine(address)
        await client.start()
        assert await asyncio.to_thread(other.poll, 60_000)
        peer, *_ = other.recv_multipart()
        other.send_multipart([peer, b"lpx7", ALIVE])
        await until(lambda: "lpx7" in client._why_away)
        with pytest.raises(EngineUnavailable, match="lpx7"):
            await anext(client.generate(request("r")))
        await client.close()


async def test_running_request_id_is_refused(core: CountdownCore, address: str) -> None:
    async with connected(address) as one, connected(address) as two:
        events = one.generate(request("r", 1000))
        await anext(events)
        [refusal] = await answer(two, request("r"))
        assert isinstance(refusal, Finished)
        assert refusal.error == "internal"
        assert isinstance(await anext(events), TokenEvent)
        await events.aclose()


async def test_explanation_reaches_who_asked(core: CountdownCore, address: str) -> None:
    async with connected(address) as one, connected(address) as two:
        answers = await asyncio.gather(one.explain("x"), two.explain("y"), two.explain("y"))
    assert [a.request_id for a in answers] == ["x", "y", "y"]


async def test_failed_adapter_is_told_to_everybody(core: CountdownCore, address: str) -> None:
    async with connected(address) as one, connected(address) as two:
        readers = [asyncio.ensure_future(anext(aiter(c.failures()))) for c in (one, two)]
        await asyncio.sleep(0)
        await one.send(PreloadAdapter("v", "acme"))
        assert await asyncio.gather(*readers) == [AdapterFailed("v", "not found")] * 2


async def test_idle_engine_sleeps(core: CountdownCore, address: str) -> None:
    async with connected(address):
        started_s, before = time.monotonic(), core.num_steps
        await asyncio.sleep(1)
        num_steps = core.num_steps - before
        publications = (time.monotonic() - started_s) / STATS_PERIOD_S
    assert num_steps <= publications + 2


@pytest.fixture
def spawn(address: str) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    spawned: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        command = [sys.executable, "-m", "tests.engine.fake_core", address, "0.01"]
        spawned.append(subprocess.Popen(command, env=env))
        return spawned[-1]

    yield start
    for engine in spawned:
        engine.kill()
        engine.wait()


async def test_killed_engine_fails_its_requests_at_once_and_the_next_one_serves(
    spawn: Callable[[], "subprocess.Popen[bytes]"], address: str, patience: None
) -> None:
    """By the end of its connection: neither its silence nor a missing heartbeat is waited for."""
    engine = spawn()
    async with connected(address) as client:
        running = [client.generate(request(f"r{i}", 10_000)) for i in range(3)]
        for events in running:
            await anext(events)
        engine.kill()
        async with asyncio.timeout(60):
            for events in running:
                with pytest.raises(EngineUnavailable):
                    async for _ in events:
                        pass
        assert client.hello is None
        assert client.stats is None
        with pytest.raises(EngineUnavailable):
            await anext(client.generate(request("r9")))

        spawn()
        await until(lambda: client.stats is not None)
        assert client.stats is not None
        assert client.stats.running == 0
        assert len(await answer(client, request("r0", 3))) == 4


async def test_an_engine_is_away_after_two_seconds_of_silence(address: str) -> None:
    now_s = 0.0
    async with bare_engine(address) as engine:
        client = RemoteEngine(address, clock=lambda: now_s)
        await client.start()
        identity, *_ = await engine.recv_multipart()
        await engine.send_multipart([identity, MAGIC, encode([HELLO])])
        await until(lambda: client.hello is not None)
        now_s = 1.99
        assert client.hello is not None
        now_s = 2.0
        assert client.hello is None
        await client.close()


async def test_stopped_engine_fails_its_requests(
    spawn: Callable[[], "subprocess.Popen[bytes]"], address: str
) -> None:
    engine, numbers = spawn(), itertools.count()
    begun: list[AsyncGenerator[TokenEvent | Finished, None]] = []
    async with connected(address) as client:

        async def begins() -> bool:  # tried again: a busy machine is silent for as long, too
            events = client.generate(request(f"r{next(numbers)}", 10_000))
            with suppress(EngineUnavailable):
                await anext(events)
                begun.append(events)
            return bool(begun)

        await until(begins)
        [events] = begun
        engine.send_signal(signal.SIGSTOP)
        await until(lambda: client.hello is None)
        with pytest.raises(EngineUnavailable):
            async for _ in events:
                pass


async def test_terminated_engine_finishes_what_runs_and_takes_nothing_new(
    spawn: Callable[[], "subprocess.Popen[bytes]"], address: str, patience: None
) -> None:
    engine = spawn()
    async with connected(address) as client:
        events = client.generate(request("r", 500))
        await anext(events)
        engine.terminate()
        await until(lambda: client.stats is not None and client.stats.draining)
        [late] = await answer(client, request("late"))
        assert isinstance(late, Finished)
        assert late.finish_reason == "error"
        rest = [event async for event in events]
        assert len(rest) == 500
    assert await asyncio.to_thread(engine.wait, 60) == 0


async def test_client_whose_loop_hangs_keeps_its_sequences(
    address: str, patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "VANISHED_S", 4.0)  # a busy machine's threads hang as well, but less
    with serving(address):
        async with connected(address) as client:
            events = client.generate(request("r", 1200))
            await anext(events)
            time.sleep(5)  # noqa: ASYNC251 (that is the point: the transport answers meanwhile)
            rest = [event async for event in events]
            assert len(rest) == 1200


@asynccontextmanager
async def bare_engine(address: str) -> AsyncIterator["zmq.asyncio.Socket"]:
    """A socket that says what the test says; its transport answers heartbeats like any other."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.bind(address)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


@pytest.mark.parametrize("sign", ["silence", "another greeting"])
async def test_a_client_that_was_forgotten_fails_its_requests_and_comes_back(
    address: str, sign: str, patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it was a thousand batches behind, and the engine ended what it had asked for."""
    greeting = [MAGIC, encode([HELLO])]
    async with bare_engine(address) as engine:
        client = RemoteEngine(address)
        await client.start()
        identity, *_ = await engine.recv_multipart()
        await engine.send_multipart([identity, *greeting])
        await until(lambda: client.hello is not None)
        asked = asyncio.create_task(answer(client, request("r")))
        await engine.recv_multipart()
        monkeypatch.setattr(client_module, "GIVE_UP_S", 0.3 if sign == "silence" else 3600.0)
        said = [MAGIC, ALIVE] if sign == "silence" else greeting
        await engine.send_multipart([identity, *said])
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(asked, 60)
        returned, *frame = await engine.recv_multipart()
        assert returned != identity
        assert decode(frame) == []
        await client.close()


async def test_a_poll_that_finds_nothing_is_no_silence(
    core: CountdownCore, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll, calls = zmq.asyncio.Poller.poll, itertools.count()

    async def forgetful(poller: zmq.asyncio.Poller, wait_ms: int) -> list[tuple[Any, int]]:
        return [] if next(calls) % 3 else await poll(poller, wait_ms)

    monkeypatch.setattr(zmq.asyncio.Poller, "poll", forgetful)
    async with connected(address) as client:
        assert len(await answer(client, request("r", 50))) == 51


async def test_what_an_engine_said_before_it_left_is_heard(address: str, patience: None) -> None:
    """All of it lies unread when the connection ends."""
    client, core, said = RemoteEngine(address), CountdownCore(step_s=0.0), list[Any]()
    core.submit(request("r", 100))
    while core.has_work:
        said += core.step()
    async with bare_engine(address) as engine:
        await client.start()
        identity, *_ = await engine.recv_multipart()
        await engine.send_multipart([identity, MAGIC, encode([HELLO])])
        await until(lambda: client.hello is not None)
        asked = asyncio.create_task(answer(client, request("r")))
        await engine.recv_multipart()
        for event in said:
            await engine.send_multipart([identity, MAGIC, encode([event])])
        time.sleep(0.5)  # noqa: ASYNC251 (the client's loop hangs while its transport receives)
        engine.close(linger=60_000)
        time.sleep(0.5)  # noqa: ASYNC251 (and while it learns of the end)
        assert await asyncio.wait_for(asked, 60) == said
    await client.close()
