"""Who was turned away, by which limit and since when: «why do I get 429?»"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from loraplex_platform.admission.models import RejectionSamples
from loraplex_platform.admission.repository import RejectionRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.ids import made_at
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.usage.periods import Period, floor_to

MINUTE = timedelta(minutes=1)
KEYS_SEARCHED = 200  # of those that were refused within a request's minute


class OfLimit:
    """Something that a limit did, which is named dimension:level:subject."""

    __slots__ = ()
    limit: str

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
class Refusals(OfLimit):
    """What one limit turned away of one key."""

    tenant_id: str
    key_id: str
    reason: str
    limit: str
    requests: int
    first: datetime  # the minute of the first one within the time asked for
    last: datetime


@dataclass(frozen=True, slots=True)
class Refusal(OfLimit):
    """One request that was turned away, with what the limit said then."""

    tenant_id: str
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
        since = self._clock.now() - within - MINUTE
        async with self._database.reading(by) as session:
            rows = await RejectionRepository(session).totals(by, since, tenant_id, limit, order)
        return [Refusals(*row) for row in rows]

    async def by_minute(self, by: Administrator, since: datetime) -> dict[datetime, int]:
        async with self._database.reading(by) as session:
            return await RejectionRepository(session).by_minute(by, since)

    async def recent(self, by: Administrator, tenant_id: str, limit: int = 50) -> list[Refusal]:
        """The tenant's latest, newest first."""
        async with self._database.reading(by) as session:
            rows = await RejectionRepository(session).samples_of(tenant_id, by)
        return sorted(_refusals(rows), key=lambda refusal: refusal.at, reverse=True)[:limit]

    async def find(self, by: Administrator, request_id: str) -> Refusal | None:
        """The request, while it is among the last that its key was refused; its id says when."""
        at = made_at(request_id)
        if at is None:
            return None
        minute = floor_to(at, MINUTE)
        async with self._database.reading(by) as session:
            rejections = RejectionRepository(session)
            rows = await rejections.samples_within(
                by, Period(minute, minute + 2 * MINUTE), KEYS_SEARCHED
            )
        return next((each for each in _refusals(rows) if each.request_id == request_id), None)


def _refusals(rows: Iterable[RejectionSamples]) -> Iterator[Refusal]:
    for row in rows:
        for sample in row.samples:
            at = datetime.fromisoformat(sample["at"])
            yield Refusal(**sample | {"tenant_id": row.tenant_id, "key_id": row.key_id, "at": at})
