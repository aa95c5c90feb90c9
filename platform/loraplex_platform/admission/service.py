"""What an operator may do with limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from loraplex_platform.admission.limits import DIMENSIONS, Level, Limit
from loraplex_platform.admission.models import LimitRule, RejectionCount, RejectionSamples
from loraplex_platform.admission.repository import LimitRepository, RejectionRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a limit binds: a tenant as a whole, one of its projects, or one of its keys."""

    tenant_id: str
    level: Level
    id: str


class LimitService:
    """Changes are seen by running servers within a second."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def set(self, subject: Subject, dimension: str, value: int, *, strict: bool) -> None:
        """Set or replace a limit; 0 admits nothing."""
        known = DIMENSIONS.get(dimension)
        if known is None:
            raise InvalidRequest(
                f"there is no dimension {dimension!r}: {', '.join(DIMENSIONS)}", param="dimension"
            )
        if known.kind == "stock" and subject.level != "tenant":
            raise InvalidRequest(f"{dimension} binds a tenant as a whole", param="level")
        try:
            Limit(known, subject.level, subject.id, value)
        except ValueError as error:
            raise InvalidRequest(str(error), param="value") from error
        rule = LimitRule(
            tenant_id=subject.tenant_id,
            level=subject.level,
            subject=subject.id,
            dimension=dimension,
            value=value,
            strict=strict,
            updated_at=self._clock.now(),
        )
        async with self._database.unit_of_work() as session:
            await LimitRepository(session).put(rule)

    async def remove(self, subject: Subject, dimension: str) -> None:
        """Lift a limit; does nothing where there is none."""
        async with self._database.unit_of_work() as session:
            await LimitRepository(session).remove(subject.level, subject.id, dimension)

    async def of_tenant(self, tenant_id: str) -> Sequence[LimitRule]:
        async with self._database.reading() as session:
            return await LimitRepository(session).of_tenant(tenant_id)

    async def rejections(self, tenant_id: str, within: timedelta) -> Sequence[RejectionCount]:
        """Counts by minute, key, reason and limit, oldest first."""
        async with self._database.reading() as session:
            since = self._clock.now() - within
            return await RejectionRepository(session).counts_of(tenant_id, since)

    async def samples(self, tenant_id: str) -> Sequence[RejectionSamples]:
        """The last rejections of each of the tenant's keys."""
        async with self._database.reading() as session:
            return await RejectionRepository(session).samples_of(tenant_id)
