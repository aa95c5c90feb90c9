"""How upper layers reach an engine. Imports no torch."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Protocol

import zmq
import zmq.asyncio

from loraplex_engine.errors import EngineUnavailable, ProtocolError
from loraplex_engine.messages import (
    Abort,
    AdapterFailed,
    Command,
    EngineStats,
    Event,
    Explain,
    Explanation,
    Finished,
    Generate,
    Hello,
    TokenEvent,
)
from loraplex_engine.wire import ALIVE, MAGIC, decode, encode, set_heartbeats

log = logging.getLogger(__name__)

SILENT_S = 2.0
GIVE_UP_S = 10.0  # of silence over a connection that stands: what was asked for is lost
RECONNECT_S = 0.1


class EngineClient(Protocol):
    """One engine, reached over an address or in memory."""

    async def start(self) -> None:
        """Connect and keep reconnecting in the background; returns without waiting for the engine."""
        ...

    async def close(self) -> None: ...

    @property
    def hello(self) -> Hello | None:
        """The engine's limits; None until it has spoken, and again while it is away."""
        ...

    @property
    def stats(self) -> EngineStats | None:
        """The latest statistics, or None while the engine is away or silent for over 2 s."""
        ...

    def generate(self, request: Generate) -> AsyncGenerator[TokenEvent | Finished, None]:
        """Events of one sequence; the last is Finished.

        Raises EngineUnavailable when the engine is away or goes away before Finished. Closing the
        generator early aborts the sequence.
        """
        ...

    async def send(self, command: Command) -> None:
        """Send a command that has no answer of its own. Raises EngineUnavailable."""
        ...

    async def explain(self, request_id: str) -> Explanation: ...

    def failures(self) -> AsyncIterator[AdapterFailed]:
        """Adapter versions that could not be loaded, as they are reported."""
        ...


class RemoteEngine:
    """An engine in another process, reached over its socket."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = address
        self._clock = clock
        self._context = zmq.asyncio.Context()
        self._keeper: asyncio.Task[None] | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._hello: Hello | None = None
        self._stats: EngineStats | None = None
        self._heard_s = -math.inf
        self._why_away = "the engine has not answered yet"
        self._requests: dict[
            str, asyncio.Queue[TokenEvent | Finished | None]
        ] = {}  # None: it is gone
        self._explanations: dict[str, asyncio.Future[Explanation]] = {}
        self._failure_readers: set[asyncio.Queue[AdapterFailed]] = set()

    async def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep_connected(), name=f"engine {self.address}")

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            self._why_away = "this client is closed"
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        self._context.term()

    @property
    def hello(self) -> Hello | None:
        return self._hello if self._is_heard else None

    @property
    def stats(self) -> EngineStats | None:
        return self._stats if self._is_heard else None

    async def generate(self, request: Generate) -> AsyncGenerator[TokenEvent | Finished, None]:
        if self.hello is None:
            raise EngineUnavailable(self._why_away)
        assert request.request_id not in self._requests
        events: asyncio.Queue[TokenEvent | Finished | None] = asyncio.Queue()
        self._post(request)
        self._requests[request.request_id] = events
        finished = False
        try:
            while not finished:
                event = await events.get()
                if event is None:
                    raise EngineUnavailable(self._why_away)
                finished = isinstance(event, Finished)
                yield event
        finally:
            if self._requests.pop(request.request_id, None) is not None and not finished:
                with suppress(EngineUnavailable):
                    self._post(Abort(request.request_id))

    async def send(self, command: Command) -> None:
        self._post(command)

    async def explain(self, request_id: str) -> Explanation:
        answer = self._explanations.get(request_id)
        if answer is None:
            self._post(Explain(request_id))
            answer = self._explanations[request_id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(answer)

    async def failures(self) -> AsyncGenerator[AdapterFailed, None]:
        reader: asyncio.Queue[AdapterFailed] = asyncio.Queue()
        self._failure_readers.add(reader)
        try:
            while True:
                yield await reader.get()
        finally:
            self._failure_readers.discard(reader)

    @property
    def _is_heard(self) -> bool:
        return self._clock() < self._heard_s + SILENT_S

    def _post(self, command: Command) -> None:
        """Send without waiting, so that a closing iterator can; its future is done at once."""
        if self._socket is None or self._hello is None:
            raise EngineUnavailable(self._why_away)
        try:
            frame = [MAGIC, encode([command])]
            asyncio.ensure_future(self._socket.send_multipart(frame, zmq.NOBLOCK)).result()
        except zmq.Again as full:
            raise EngineUnavailable("the engine does not take messages") from full

    async def _keep_connected(self) -> None:
        while True:
            try:
                await self._converse()
                self._why_away = "the engine went away"
            except ProtocolError as error:
                log.error("engine at %s: %s", self.address, error)
                self._why_away = str(error)
            finally:
                self._lose_engine()
            await asyncio.sleep(RECONNECT_S)

    async def _converse(self) -> None:
        """One connection, from the first greeting until it breaks.

        A socket is never used for a second connection: what it has queued was meant for the engine
        that is gone. It is no ZMQ_IMMEDIATE socket: that drops what has come and was not read yet as
        soon as the other side closes.
        """
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.reconnect_ivl = int(1000 * RECONNECT_S)
        set_heartbeats(socket)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        poller = zmq.asyncio.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        try:
            socket.connect(self.address)
            await socket.send_multipart([MAGIC, ALIVE])
            self._socket = socket
            heard_s = time.monotonic()
            while True:
                # Asked again at once, since a loop that hung sees only that the time is over.
                ready = dict(await poller.poll(int(1000 * GIVE_UP_S)) or await poller.poll(0))
                is_over = monitor in ready or time.monotonic() > heard_s + GIVE_UP_S
                if socket in ready:
                    heard_s = time.monotonic()
                    events = decode(await socket.recv_multipart())
                    if self._hello is not None and any(isinstance(each, Hello) for each in events):
                        return  # greeted anew: the engine took this client for gone
                    self._take(events)
                elif is_over and not await socket.poll(0):
                    return  # what it said last was there before the word of its end
        finally:
            self._socket = None
            socket.disable_monitor()
            monitor.close()
            socket.close()

    def _take(self, events: list[Event]) -> None:
        self._heard_s = self._clock()
        for event in events:
            match event:
                case TokenEvent(request_id) | Finished(request_id):
                    if request_id in self._requests:
                        self._requests[request_id].put_nowait(event)
                case Hello():
                    self._hello = event
                case EngineStats():
                    self._stats = event
                case Explanation(request_id):
                    self._explanations.pop(request_id).set_result(event)
                case AdapterFailed():
                    for reader in self._failure_readers:
                        reader.put_nowait(event)

    def _lose_engine(self) -> None:
        """Fail what the engine that is gone has not finished."""
        self._hello = self._stats = None
        for events in self._requests.values():
            events.put_nowait(None)
        self._requests.clear()
        for answer in self._explanations.values():
            answer.set_exception(EngineUnavailable(self._why_away))
        self._explanations.clear()
