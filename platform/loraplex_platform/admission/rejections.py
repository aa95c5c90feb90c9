"""Why requests were turned away: counted by the minute, with samples, written now and then."""

import asyncio
from collections import Counter, deque
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from loraplex_platform.admission.limits import Rejection
from loraplex_platform.admission.repository import Bin, RejectionRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Principal

FLUSH_EVERY_S = 5.0
SAMPLES_PER_KEY = 100

log = structlog.get_logger(__name__)


class RejectionLog:
    """A flood costs memory for its keys, and one row a minute for each key, reason and limit."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._counts: Counter[Bin] = Counter()
        self._samples: dict[tuple[str, str], deque[dict[str, Any]]] = {}

    def add(self, principal: Principal, request_id: str, rejection: Rejection) -> None:
        now = self._clock.now()
        who = (principal.tenant_id, principal.key_id)
        minute = now.replace(second=0, microsecond=0)
        self._counts[Bin(*who, minute, rejection.reason, rejection.limit.name)] += 1
        self._samples.setdefault(who, deque(maxlen=SAMPLES_PER_KEY)).append(
            {
                "at": now.isoformat(),
                "request_id": request_id,
                "reason": rejection.reason,
                "limit": rejection.limit.name,
                "value": rejection.limit.value,
                "used": rejection.used,
                "requested": rejection.requested,
                "retry_after_s": rejection.retry_after_s,
            }
        )

    async def run(self) -> None:
        """Writes until it is cancelled; what a failing database misses is written later."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            try:
                await self.flush()
            except SQLAlchemyError as error:
                log.warning("rejections_not_written", exc_info=error)

    async def flush(self) -> None:
        """Write what was added since the last time, in an order that all workers keep."""
        if not self._counts:
            return
        counts, samples = self._counts, self._samples
        self._counts, self._samples = Counter(), {}
        try:
            async with self._database.unit_of_work() as session:
                rejections = RejectionRepository(session)
                for bin, more in sorted(counts.items()):
                    await rejections.count(bin, more)
                for (tenant_id, key_id), recent in sorted(samples.items()):
                    await rejections.sample(tenant_id, key_id, list(recent), SAMPLES_PER_KEY)
        except BaseException:
            self._counts.update(counts)
            for who, recent in samples.items():
                later = self._samples.get(who, ())
                self._samples[who] = deque([*recent, *later], maxlen=SAMPLES_PER_KEY)
            raise
