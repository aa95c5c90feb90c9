"""An event loop whose clock leaps over waits: seconds are counted, however busy the machine is."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Where nothing is ready, `now_s` leaps to when the loop wants to be woken."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.now_s += timeout
        return ready


class LeapingLoop(asyncio.SelectorEventLoop):
    """For tests of who waits how long; what other threads and processes answer, it waits for in vain."""

    def __init__(self) -> None:
        self._leaping = _Selector()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in leaping time."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(main)
