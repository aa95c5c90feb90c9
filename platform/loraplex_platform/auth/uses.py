"""When keys were last used, written at most once a minute for each."""

import asyncio
from datetime import datetime

import structlog

from loraplex_platform.auth.repository import KeyRepository
from loraplex_platform.db.database import UNREACHABLE, Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Principal
from loraplex_platform.kit.recent import Recent

log = structlog.get_logger(__name__)
EVERY_S = 60.0  # between two writes of one key
FLUSH_S = 5.0


class KeyUses:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._written: Recent[str, bool] = Recent(clock, EVERY_S)
        self._pending: dict[str, tuple[str, datetime]] = {}

    def note(self, principal: Principal) -> None:
        if self._written.get(principal.key_id) is None:
            self._written.put(principal.key_id, True)
            self._pending[principal.key_id] = (principal.tenant_id, self._clock.now())

    async def run(self) -> None:
        """Until cancelled; what could not be written is tried again."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
            except UNREACHABLE as error:
                log.warning("key_uses_not_written", error=type(error).__name__)

    async def flush(self) -> None:
        if self._pending:
            pending = dict(self._pending)
            async with self._database.unit_of_work() as session:
                await KeyRepository(session).note_use(pending)
            for key_id, use in pending.items():
                if self._pending.get(key_id) == use:
                    del self._pending[key_id]
