"""Who was turned away, by which limit and since when: «why do I get 429?»"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from loraplex_platform.admission.repository import RejectionRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Administrator


class Refusals(NamedTuple):
    """What one limit turned away of one key."""

    tenant_id: str
    key_id: str
    reason: str
    limit: str  # its name: dimension:level:subject
    requests: int
    first: datetime  # the minute of the first one within the time asked for
    last: datetime

    @property
    def dimension(self) -> str:
        return self.limit.split(":")[0]

    @property
    def level(self) -> str:
        return self.limit.split(":")[1]

    @property
    def subject(self) -> str:
        return self.limit.split(":", 2)[2]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request that was turned away, with what the limit said then."""

    key_id: str
    at: datetime
    request_id: str
    reason: str
    limit: str
    value: int
    used: int
    requested: int
    retry_after_s: float | None


class RefusalService:
    """Running servers write what they turned away every few seconds."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def totals(
        self,
        by: Administrator,
        within: timedelta,
        *,
        tenant_id: str | None = None,
        limit: int = 100,
        order: str = "-turned",
    ) -> Sequence[Refusals]:
        """Most refused first, unless `order` says otherwise."""
        since = self._clock.now() - within - timedelta(minutes=1)
        async with self._database.reading(by) as session:
            rows = await RejectionRepository(session).totals(by, since, tenant_id, limit, order)
        return [Refusals._make(row) for row in rows]

    async def by_minute(self, by: Administrator, since: datetime) -> dict[datetime, int]:
        async with self._database.reading(by) as session:
            return await RejectionRepository(session).by_minute(by, since)

    async def recent(self, by: Administrator, tenant_id: str, limit: int = 50) -> list[Refusal]:
        """The tenant's latest, newest first."""
        async with self._database.reading(by) as session:
            rows = await RejectionRepository(session).samples_of(tenant_id, by)
        refusals = [
            Refusal(**{**sample, "key_id": row.key_id, "at": datetime.fromisoformat(sample["at"])})
            for row in rows
            for sample in row.samples
        ]
        return sorted(refusals, key=lambda refusal: refusal.at, reverse=True)[:limit]
