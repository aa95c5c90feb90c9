"""What an operator may do with limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.admission.effective import EffectiveLimit, effective_limits
from loraplex_platform.admission.limits import DIMENSIONS, Level, Limit
from loraplex_platform.admission.models import (
    LimitOverride,
    LimitRule,
    RejectionCount,
    RejectionSamples,
)
from loraplex_platform.admission.repository import (
    LimitRepository,
    RejectionRepository,
    Setting,
)
from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import LimitsEvent
from loraplex_platform.events.outbox import emit
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidRequest, NotFound
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator, Principal
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.tenants.repository import TenantRepository


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a limit binds: a tenant as a whole, one of its projects, or one of its keys."""

    tenant_id: str
    level: Level
    id: str


def check_limit(dimension: str, value: int, subject: Subject) -> None:
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


class LimitService:
    """Changes are seen by running servers within a second."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def set(
        self,
        subject: Subject,
        dimension: str,
        value: int,
        *,
        strict: bool,
        by: Administrator = COMMAND_LINE,
        revision: int | None = None,
    ) -> LimitRule:
        """Set or replace a limit; 0 admits nothing."""
        check_limit(dimension, value, subject)
        rule = LimitRule(
            tenant_id=subject.tenant_id,
            level=subject.level,
            subject=subject.id,
            dimension=dimension,
            value=value,
            strict=strict,
            updated_at=self._clock.now(),
        )
        return await self._put(by, subject, rule, revision)

    async def remove(
        self, subject: Subject, dimension: str, *, by: Administrator = COMMAND_LINE
    ) -> bool:
        """Lift a limit; whether there was one."""
        return await self._remove(by, LimitRule, subject, dimension)

    async def override(
        self,
        subject: Subject,
        dimension: str,
        value: int,
        *,
        expires_at: datetime | None,
        reason: str = "",
        by: Administrator = COMMAND_LINE,
        revision: int | None = None,
    ) -> LimitOverride:
        """Another value for a while; what was set before comes back by itself."""
        check_limit(dimension, value, subject)
        if DIMENSIONS[dimension].kind == "stock":
            raise InvalidRequest(f"{dimension} cannot be overridden: set it", param="dimension")
        if expires_at is not None and expires_at <= self._clock.now():
            raise InvalidRequest("expires_at is in the past", param="expires_at")
        row = LimitOverride(
            tenant_id=subject.tenant_id,
            level=subject.level,
            subject=subject.id,
            dimension=dimension,
            value=value,
            reason=reason,
            created_at=self._clock.now(),
            expires_at=expires_at,
        )
        return await self._put(by, subject, row, revision)

    async def end_override(
        self, subject: Subject, dimension: str, *, by: Administrator = COMMAND_LINE
    ) -> bool:
        """Whether there was one."""
        return await self._remove(by, LimitOverride, subject, dimension)

    async def find(self, table: type[Setting], subject: Subject, dimension: str) -> Setting:
        async with self._database.reading() as session:
            row = await _standing(session, table, subject, dimension)
        if row is None:
            raise NotFound(f"nothing is set for {dimension!r}", param="dimension")
        return row

    async def page(
        self, table: type[Setting], tenant_id: str, *, after: str | None, limit: int
    ) -> Sequence[Setting]:
        """Of the tenant, its projects and its keys."""
        async with self._database.reading() as session:
            return await LimitRepository(session).page(table, tenant_id, after, limit)

    async def overrides(self, tenant_id: str) -> Sequence[LimitOverride]:
        async with self._database.reading() as session:
            return await LimitRepository(session).overrides_of(tenant_id)

    async def effective(self, principal: Principal) -> tuple[EffectiveLimit, ...]:
        """What binds this key, read afresh, with where each value comes from."""
        async with self._database.reading(principal) as session:
            return await effective_limits(session, principal, self._clock.now())

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

    async def _put(
        self, by: Administrator, subject: Subject, row: Setting, revision: int | None
    ) -> Setting:
        async with changing(self._database, by, self._clock) as session:
            await TenantRepository(session).locked(subject.tenant_id)  # one change after the other
            there = await _standing(session, type(row), subject, row.dimension)
            check_revision(there, revision)
            put = await LimitRepository(session).put(row, there)
            await self._tell(session, subject, row.dimension)
        return put

    async def _remove(
        self, by: Administrator, table: type[Setting], subject: Subject, dimension: str
    ) -> bool:
        async with changing(self._database, by, self._clock) as session:
            await TenantRepository(session).locked(subject.tenant_id)
            row = await _standing(session, table, subject, dimension)
            if row is not None:
                await LimitRepository(session).remove(row)
                await self._tell(session, subject, dimension)
        return row is not None

    async def _tell(self, session: AsyncSession, subject: Subject, dimension: str) -> None:
        payload = LimitsEvent(subject.level, subject.id, dimension)
        await emit(session, subject.tenant_id, "limits.changed", payload, self._clock.now())


async def _standing(
    session: AsyncSession, table: type[Setting], subject: Subject, dimension: str
) -> Setting | None:
    limits = LimitRepository(session)
    return await limits.find(table, subject.tenant_id, subject.level, subject.id, dimension)
