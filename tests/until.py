"""Waiting for what another task, thread or process does, without a word of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

WITHIN_S = 60.0  # what takes a moment elsewhere may take so long on a busy machine
PAUSE_S = 0.01


async def until(
    condition: Callable[[], bool | Awaitable[bool]], within_s: float = WITHIN_S
) -> None:
    """Raises TimeoutError."""
    deadline_s = time.monotonic() + within_s
    while True:
        is_so = condition()
        if isinstance(is_so, Awaitable):
            is_so = await is_so
        if is_so:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError
        await asyncio.sleep(PAUSE_S)


def wait_until(condition: Callable[[], bool], within_s: float = WITHIN_S, what: str = "it") -> None:
    """The same for a test without a loop; `what` is said when it does not come to pass."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {within_s} s for {what}")
        time.sleep(PAUSE_S)
