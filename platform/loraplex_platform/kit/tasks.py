"""Work that outlives the request that started it."""

import asyncio
from collections.abc import Coroutine

import structlog

log = structlog.get_logger(__name__)


class Tasks:
    """Keeps hold of background tasks until they end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def drain(self) -> None:
        """Wait for what runs, and for what that starts."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("task_failed", exc_info=task.exception())
