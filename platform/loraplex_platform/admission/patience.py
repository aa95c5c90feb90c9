"""Waiting for money that requests at work hold, and may give back.

What a request will cost is a guess until it ends. Where only such guesses stand between a request and
its budget, it is neither refused nor let past them: it waits until one of them ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

PATIENCE_S = 10.0  # afterwards the client is told when to come back
LOOK_EVERY_S = 0.25  # for what other processes gave back
MOST_WAITING = 100  # of one tenant; those beyond are not kept

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Queue:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one tries at a time, in their order
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    num_waiting: int = 0


class Patience:
    """One process's requests that wait, by tenant."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._queues: dict[str, _Queue] = {}

    def ended(self, tenant: str) -> None:
        """A request of this tenant holds nothing any more."""
        if (queue := self._queues.get(tenant)) is not None:
            queue.ended.set()

    async def until(
        self,
        tenant: str,
        attempt: Callable[[], Awaitable[Answer]],
        is_held: Callable[[Answer], bool],
        answer: Answer,
    ) -> Answer:
        """Attempts again, whenever a request ends, while the answer is that all is held."""
        queue = self._queues.setdefault(tenant, _Queue())
        if queue.num_waiting >= MOST_WAITING:
            return answer
        queue.num_waiting += 1
        try:
            return await self._until(queue, attempt, is_held, answer)
        finally:
            queue.num_waiting -= 1
            if not queue.num_waiting:
                del self._queues[tenant]

    async def _until(
        self,
        queue: _Queue,
        attempt: Callable[[], Awaitable[Answer]],
        is_held: Callable[[Answer], bool],
        answer: Answer,
    ) -> Answer:
        now = asyncio.get_running_loop().time
        until = now() + self._patience_s
        try:
            async with asyncio.timeout_at(until):
                await queue.turn.acquire()
        except TimeoutError:
            return answer
        try:
            while is_held(answer) and now() < until:
                queue.ended.clear()
                answer = await attempt()
                if is_held(answer):
                    with suppress(TimeoutError):  # another look is due, or patience ends
                        async with asyncio.timeout_at(min(until, now() + LOOK_EVERY_S)):
                            await queue.ended.wait()
            return answer
        finally:
            queue.turn.release()
