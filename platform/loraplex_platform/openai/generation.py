"""One request at work in the engine: it outlives its client, and is settled exactly once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import NamedTuple, Protocol

from loraplex_engine.client import EngineClient
from loraplex_engine.errors import (
    BadRequest,
    ContextTooLong,
    DeadlineExceeded,
    EngineError,
    EngineInternal,
    EngineOverloaded,
    EngineUnavailable,
    UnknownAdapter,
)
from loraplex_engine.messages import Abort, ErrorCode, Finished, Generate, Hello, TokenEvent
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import PlatformError
from loraplex_platform.kit.tasks import Tasks
from loraplex_platform.openai.tally import Tally

POLL_S = 0.05
LAST_WORD_S = 5.0  # how long an aborted sequence may take to say what it cost

ENGINE_ERRORS: dict[ErrorCode, type[EngineError]] = {
    "bad_request": BadRequest,
    "context_too_long": ContextTooLong,
    "unknown_adapter": UnknownAdapter,
    "timeout": DeadlineExceeded,
    "unavailable": EngineUnavailable,
    "internal": EngineInternal,
}


class Settle(Protocol):
    """Told of a request's first token, once or more, and of its end, once."""

    async def started(self) -> None: ...

    async def __call__(self, tally: Tally, error: EngineError | None) -> None: ...


class Piece(NamedTuple):
    """An event of one of the request's sequences."""

    choice: int
    event: TokenEvent | Finished


async def hello_of(engine: EngineClient, wait_s: float) -> Hello:
    """The limits of an engine that takes requests, waiting while it restarts.

    Raises EngineUnavailable when that takes too long.
    """
    for _ in range(max(1, round(wait_s / POLL_S))):
        is_draining = engine.stats is not None and engine.stats.draining
        if engine.hello is not None and not is_draining:
            return engine.hello
        await asyncio.sleep(POLL_S)
    raise EngineUnavailable


class Generation:
    """Runs in a task of its own; the response reads from it, or abandons it."""

    def __init__(
        self,
        engine: EngineClient,
        requests: list[Generate],
        tally: Tally,
        settle: Settle,
        clock: Clock,
        tasks: Tasks,
        *,
        wait_s: float,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._tally = tally
        self._settle = settle
        self._clock = clock
        self._wait_s = wait_s
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()  # None: it is over
        self._pumps: list[asyncio.Task[None]] = []
        self._failure: EngineError | None = EngineInternal()  # until we know better
        self._has_sent = False
        self._is_abandoned = False
        self._dismissal: PlatformError | None = None
        self._tasks = tasks
        self._task = tasks.spawn(self._run())

    async def pieces(self) -> AsyncIterator[Piece]:
        """Events as they come. From the first one on, a lost engine is an error."""
        while (piece := await self._pieces.get()) is not None:
            if self._dismissal is None:
                self._has_sent = self._tally.was_delivered = True
                yield piece
        await asyncio.wait({self._task})
        self._task.result()  # raises a fault of ours
        if self._dismissal is not None:
            raise self._dismissal
        if self._failure is not None:
            raise self._failure

    async def whole(self) -> list[Piece]:
        """All events, once the request is settled."""
        await asyncio.wait({self._task})
        return [piece async for piece in self.pieces()]

    def abandon(self) -> None:
        """The client is gone: stop the sequences, and let them say what they cost."""
        if not (self._task.done() or self._is_abandoned):
            self._is_abandoned = self._tally.was_delivered = True
            self._tasks.spawn(self._abort())

    def dismiss(self, why: PlatformError) -> None:
        """Stop as if the client had gone, and tell the client why."""
        if not self._task.done():
            self._dismissal = why
            self._tally.stopped_by = "cancelled"
            self.abandon()

    def on_end(self, call: Callable[[], None]) -> None:
        """Called once it is settled."""
        self._task.add_done_callback(lambda _: call())

    async def _abort(self) -> None:
        with suppress(EngineUnavailable):  # then they have stopped already
            for request in self._requests:
                await self._engine.send(Abort(request.request_id))
        await asyncio.wait({self._task}, timeout=LAST_WORD_S)
        for pump in self._pumps:
            pump.cancel()

    async def _run(self) -> None:
        try:
            await self._serve()
            self._failure = None
        except EngineError as error:
            self._failure = error
        finally:
            try:
                await self._settle(self._tally, self._failure)
            finally:
                self._pieces.put_nowait(None)

    async def _serve(self) -> None:
        try:
            await self._attempt()
        except EngineUnavailable:
            if self._has_sent or self._is_abandoned:
                raise
            self._start_again()
            await hello_of(self._engine, self._wait_s)
            await self._attempt()

    def _start_again(self) -> None:
        """Nothing of the first attempt has been seen; the seeds make the second one identical."""
        while not self._pieces.empty():
            self._pieces.get_nowait()
        self._tally.restart()
        self._requests = [replace(r, request_id=f"{r.request_id}.retry") for r in self._requests]

    async def _attempt(self) -> None:
        """All sequences side by side; the first failure ends the others."""
        if self._is_abandoned:
            return
        self._pumps = [
            asyncio.create_task(self._pump(index, request))
            for index, request in enumerate(self._requests)
        ]
        try:
            await asyncio.wait(self._pumps, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for pump in self._pumps:
                pump.cancel()
            results = await asyncio.gather(*self._pumps, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _pump(self, index: int, request: Generate) -> None:
        async with aclosing(self._engine.generate(request)) as events:
            async for event in events:
                waited = self._tally.first_token_s is None
                self._tally.add(index, event, self._clock.monotonic())
                if waited and self._tally.first_token_s is not None:
                    self._tasks.spawn(self._settle.started())
                if isinstance(event, Finished) and event.error is not None:
                    raise _error_of(event)
                self._pieces.put_nowait(Piece(index, event))


def _error_of(end: Finished) -> EngineError:
    if end.error == "overloaded":
        return EngineOverloaded(end.message, retry_after_s=end.retry_after_s or 1.0)
    assert end.error is not None
    return ENGINE_ERRORS[end.error](end.message)
