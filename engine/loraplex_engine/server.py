"""The engine process: one loop around the core, one socket for all clients.

The main thread computes; a second thread owns the ROUTER socket. Commands come through a queue,
batches of events go back through an in-process socket. An idle engine sleeps in the queue.
"""

import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import zmq

from loraplex_engine.errors import ProtocolError
from loraplex_engine.messages import (
    Abort,
    Command,
    Drain,
    EngineStats,
    Event,
    Explain,
    Explanation,
    Finished,
    Generate,
    Hello,
    TokenEvent,
)
from loraplex_engine.wire import ALIVE, HEARTBEAT_S, MAGIC, decode, encode, set_heartbeats

log = logging.getLogger(__name__)

STATS_PERIOD_S = 0.25
STALLED_S = 0.001  # pause after a step in which all work waits
STUCK_S = 60.0  # a core that does not come back from a step for so long falls silent
LINGER_MS = 1000


class Core(Protocol):
    """The engine's loop as the server drives it; `loraplex_engine.core.Engine` is one."""

    @property
    def hello(self) -> Hello: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def is_stalled(self) -> bool: ...

    @property
    def is_drained(self) -> bool: ...

    def submit(self, command: Command) -> None: ...

    def step(self) -> list[Event]: ...

    def stats(self) -> EngineStats: ...


class Arrived(NamedTuple):
    client: bytes
    commands: list[Command]


class Joined(NamedTuple):
    client: bytes


class Vanished(NamedTuple):
    client: bytes


Note = Arrived | Joined | Vanished | Drain
Send = Callable[[bytes, bytes], None]  # client, batch


class Switchboard:
    """Who asked for what: routes events to clients and closes what a vanished client left."""

    def __init__(self, core: Core, send: Send) -> None:
        self.core = core
        self._send = send
        self._clients: set[bytes] = set()
        self._owner: dict[str, bytes] = {}  # of each live request
        self._askers: defaultdict[str, list[bytes]] = defaultdict(list)  # of explanations

    def take(self, note: Note) -> None:
        match note:
            case Arrived(client, commands):
                for command in commands:
                    self._submit(client, command)
            case Joined(client):
                self._clients.add(client)
                self._send(client, encode([self.core.hello, self.core.stats()]))
            case Vanished(client):
                self._clients.discard(client)
                for request_id in [r for r, owner in self._owner.items() if owner == client]:
                    self.core.submit(Abort(request_id))
            case Drain():
                self.core.submit(note)

    def deliver(self, events: Iterable[Event]) -> None:
        """Send each client what concerns it, in one batch."""
        batches: defaultdict[bytes, list[Event]] = defaultdict(list)
        for event in events:
            for client in self._listeners(event):
                batches[client].append(event)
        for client, batch in batches.items():
            self._send(client, encode(batch))

    def _submit(self, client: bytes, command: Command) -> None:
        if isinstance(command, Generate):
            if command.request_id in self._owner:
                self._send(client, encode([_refused(command)]))
                return
            self._owner[command.request_id] = client
        elif isinstance(command, Explain):
            self._askers[command.request_id].append(client)
        self.core.submit(command)

    def _listeners(self, event: Event) -> Iterable[bytes]:
        match event:
            case TokenEvent(request_id):
                listeners: Iterable[bytes] = (self._owner[request_id],)
            case Finished(request_id):
                listeners = (self._owner.pop(request_id),)
            case Explanation(request_id):
                listeners = (self._askers[request_id].pop(0),)
                if not self._askers[request_id]:
                    del self._askers[request_id]
            case _:
                listeners = tuple(self._clients)
        return [client for client in listeners if client in self._clients]


def _refused(request: Generate) -> Finished:
    return Finished(
        request_id=request.request_id,
        finish_reason="error",
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=0,
        completion_tokens=0,
        recomputed_tokens=0,
        queue_s=0.0,
        ttft_s=None,
        total_s=0.0,
        engine_s=0.0,
        tier=request.tier,
        error="internal",
        message="a request with this id is running",
    )


class EngineServer:
    """Serves one core on one address until it is drained."""

    def __init__(self, core: Core, address: str) -> None:
        self._core = core
        self._inbox: queue.SimpleQueue[Note] = queue.SimpleQueue()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.set_hwm(0)
        handoff = f"inproc://engine-server-{id(self)}"
        self._outbox.bind(handoff)
        self._switchboard = Switchboard(core, self._post)
        self._porter = Porter(self._context, address, handoff, self._inbox.put)

    def drain(self, remaining_s: float) -> None:
        """Finish what runs within this time and return from `run`; callable from a signal handler."""
        self._inbox.put(Drain(remaining_s))

    def run(self) -> None:
        """Serve; all compute happens in the calling thread."""
        self._porter.start()
        published_s = time.monotonic()
        try:
            while not self._core.is_drained:
                self._take_notes(published_s + STATS_PERIOD_S - time.monotonic())
                events = self._core.step()
                now = time.monotonic()
                self._porter.core_seen_s = now
                if now >= published_s + STATS_PERIOD_S:
                    events.append(self._core.stats())
                    published_s = now
                self._switchboard.deliver(events)
        finally:
            self._outbox.send_multipart([b"", b""])
            self._porter.join()
            self._outbox.close()
            self._context.term()  # the last answers are on their way

    def _take_notes(self, patience_s: float) -> None:
        """Take all commands that wait; with nothing to do, sleep until one comes."""
        if self._core.has_work:
            patience_s = STALLED_S if self._core.is_stalled else 0.0
        try:
            self._switchboard.take(self._inbox.get(timeout=max(patience_s, 0.0)))
            while True:
                self._switchboard.take(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _post(self, client: bytes, batch: bytes) -> None:
        self._outbox.send_multipart([client, batch])


class Porter(threading.Thread):
    """Owns the ROUTER socket: knows the clients, keeps them assured, tells when one is gone.

    Liveness is the transport's: both sides' I/O threads answer heartbeats whatever Python does, and
    a send to a client that is gone fails.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        handoff: str,
        put: Callable[[Note], None],
    ) -> None:
        super().__init__(name="porter", daemon=True)
        self.core_seen_s = time.monotonic()
        self._put = put
        self._clients: set[bytes] = set()
        self._outgoing = context.socket(zmq.PULL)
        self._outgoing.set_hwm(0)
        self._outgoing.connect(handoff)
        self._router = context.socket(zmq.ROUTER)
        self._router.router_mandatory = True
        self._router.linger = LINGER_MS
        set_heartbeats(self._router)
        self._router.bind(address)

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._outgoing, zmq.POLLIN)
        assured_s = time.monotonic()
        while True:
            ready = dict(
                poller.poll(max(0, int(1000 * (assured_s + HEARTBEAT_S - time.monotonic()))))
            )
            if self._router in ready:
                self._receive(*self._router.recv_multipart())
            if self._outgoing in ready:
                client, batch = self._outgoing.recv_multipart()
                if not client:
                    break
                self._send(client, batch)
            now = time.monotonic()
            if now >= assured_s + HEARTBEAT_S:
                assured_s = now
                if now < self.core_seen_s + STUCK_S:
                    for client in tuple(self._clients):
                        self._send(client, ALIVE)
        self._router.close()
        self._outgoing.close()

    def _receive(self, client: bytes, *frame: bytes) -> None:
        try:
            commands = decode(list(frame))
        except ProtocolError as error:
            log.error("client %s: %s", client.hex(), error)
            self._send(client, ALIVE)  # tells it which protocol is spoken here
            return
        if client not in self._clients:
            self._clients.add(client)
            self._put(Joined(client))
        if commands:
            self._put(Arrived(client, commands))

    def _send(self, client: bytes, batch: bytes) -> None:
        try:
            self._router.send_multipart([client, MAGIC, batch], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (
                zmq.EHOSTUNREACH,
                zmq.EAGAIN,
            ):  # gone, or a thousand batches behind
                raise
            if client in self._clients:
                self._clients.remove(client)
                self._put(Vanished(client))
