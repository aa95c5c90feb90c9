"""Waiting for what another thread or process does, without a word of it."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Raises TimeoutError."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        await asyncio.sleep(0.01)
