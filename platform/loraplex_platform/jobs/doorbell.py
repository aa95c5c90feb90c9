"""Rings at the workers' door without making the request wait."""

import asyncio

import structlog
from kombu.exceptions import OperationalError

from loraplex_platform.jobs.broker import RING, open_broker
from loraplex_platform.kit.tasks import Tasks

log = structlog.get_logger(__name__)


class Doorbell:
    """A ring that is lost costs one tick."""

    def __init__(self, redis_url: str) -> None:
        self._broker = open_broker(redis_url)
        self._tasks = Tasks()

    def start(self) -> None:
        """There is nothing to start: the workers are other processes."""

    def ring(self, batch_id: str) -> None:
        self._tasks.spawn(self._ring(batch_id))

    async def stop(self, grace_s: float) -> None:
        await self._tasks.drain()
        await asyncio.to_thread(self._broker.close)

    async def _ring(self, batch_id: str) -> None:
        try:
            await asyncio.to_thread(self._broker.send_task, RING, [batch_id], retry=False)
        except OperationalError as error:
            log.warning("doorbell_unheard", batch=batch_id, error=str(error))
