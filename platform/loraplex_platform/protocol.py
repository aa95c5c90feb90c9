"""HTTP on the wire: uvicorn's, but it hangs up on clients that do not keep pace."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# Between requests; longer than clients and proxies keep a connection, so that they end it.
IDLE_S = 75
HEAD_S = 10.0  # for the whole head of a request
STALLED_S = 60.0  # for a client to read on when its answer has filled the buffers


class PunctualProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_keep_alive = IDLE_S
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        _cancel(self._stall_timer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and not self._is_answering:
            self._expect_head()
        super().data_received(data)
        if self._is_answering:
            self._has_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stall_timer)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._hang_up)

    def _has_head(self) -> None:
        _cancel(self._head_timer)
        self._head_timer = None

    def _hang_up(self) -> None:
        if not self._is_answering:  # the next request may have come with the last one
            self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
