"""What nobody waits for: closing tenants, and throwing away what is over."""

import asyncio

import structlog

from loraplex_platform.control.closing import Closer
from loraplex_platform.control.retention import Retention
from loraplex_platform.db.database import UNREACHABLE
from loraplex_platform.kit.clock import Clock
from loraplex_platform.people.sessions import SessionService
from loraplex_platform.rest.idempotency import Idempotency

EVERY_S = 30.0
RETENTION_EVERY_S = 3600.0

log = structlog.get_logger(__name__)


class Housekeeper:
    """Any number of processes may run one."""

    def __init__(
        self,
        closer: Closer,
        retention: Retention,
        sessions: SessionService,
        idempotency: Idempotency,
        clock: Clock,
    ) -> None:
        self._closer = closer
        self._retention = retention
        self._sessions = sessions
        self._idempotency = idempotency
        self._clock = clock
        self._retained_s = -RETENTION_EVERY_S  # monotonic

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.tidy()
            except (*UNREACHABLE, OSError) as error:
                log.warning("housekeeping_failed", error=str(error))

    async def tidy(self) -> None:
        await self._sessions.sweep()
        await self._idempotency.sweep()
        if self._clock.monotonic() - self._retained_s >= RETENTION_EVERY_S:
            await self._retention.apply()
            self._retained_s = self._clock.monotonic()
        await self._closer.run_once()  # last: a disk that is full stops nothing else
