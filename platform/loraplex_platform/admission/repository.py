"""Statements on limits and on rejections."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Row, and_, func, or_, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.admission.models import (
    BETWEEN,
    LimitOverride,
    LimitRule,
    RejectionCount,
    RejectionSamples,
)
from loraplex_platform.db.scope import across_tenants, for_tenant, visible_to
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator, Principal
from loraplex_platform.usage.periods import Period

Setting = TypeVar("Setting", LimitRule, LimitOverride)


class LimitRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def binding(self, principal: Principal) -> Sequence[LimitRule]:
        """The rules of the principal's tenant, project and key."""
        statement = for_tenant(principal, LimitRule).where(_binds(LimitRule, principal))
        return (await self._session.scalars(statement)).all()

    async def overriding(self, principal: Principal, now: datetime) -> Sequence[LimitOverride]:
        """The same of overrides that have not expired."""
        statement = for_tenant(principal, LimitOverride).where(
            _binds(LimitOverride, principal),
            or_(LimitOverride.expires_at.is_(None), LimitOverride.expires_at > now),
        )
        return (await self._session.scalars(statement)).all()

    async def overrides_of(self, tenant_id: str) -> Sequence[LimitOverride]:
        statement = across_tenants(LimitOverride).where(LimitOverride.tenant_id == tenant_id)
        order = (LimitOverride.level, LimitOverride.subject, LimitOverride.dimension)
        return (await self._session.scalars(statement.order_by(*order))).all()

    async def of_tenant(self, tenant_id: str) -> Sequence[LimitRule]:
        statement = across_tenants(LimitRule).where(LimitRule.tenant_id == tenant_id)
        order = (LimitRule.level, LimitRule.subject, LimitRule.dimension)
        return (await self._session.scalars(statement.order_by(*order))).all()

    async def of_whole(self, tenant_id: str, dimension: str) -> LimitRule | None:
        """The rule that binds the tenant as a whole."""
        statement = across_tenants(LimitRule).where(
            LimitRule.tenant_id == tenant_id,
            LimitRule.level == "tenant",
            LimitRule.dimension == dimension,
        )
        return await self._session.scalar(statement)

    async def page(
        self, table: type[Setting], tenant_id: str, after: str | None, limit: int
    ) -> Sequence[Setting]:
        """By subject and dimension, from behind the one with the id `after`."""
        statement = across_tenants(table).where(table.tenant_id == tenant_id)
        if after is not None:
            subject, _, dimension = after.partition(BETWEEN)
            behind = tuple_(table.subject, table.dimension) > (subject, dimension)
            statement = statement.where(behind)
        statement = statement.order_by(table.subject, table.dimension).limit(limit)
        return (await self._session.scalars(statement)).all()

    async def put(self, row: Setting, there: Setting | None) -> Setting:
        """Set, or replace what is there; returns what stands now."""
        if there is None:
            self._session.add(row)
        else:
            for column in there.__table__.columns:
                setattr(there, column.key, getattr(row, column.key))
        await self._session.flush()
        return there or row

    async def remove(self, row: LimitRule | LimitOverride) -> None:
        await self._session.delete(row)
        await self._session.flush()

    async def find(
        self, table: type[Setting], tenant_id: str, level: str, subject: str, dimension: str
    ) -> Setting | None:
        statement = across_tenants(table).where(
            table.tenant_id == tenant_id,
            table.level == level,
            table.subject == subject,
            table.dimension == dimension,
        )
        return await self._session.scalar(statement)


def _binds(
    table: type[LimitRule] | type[LimitOverride], principal: Principal
) -> ColumnElement[bool]:
    subjects = (
        ("tenant", principal.tenant_id),
        ("project", principal.project_id),
        ("key", principal.key_id),
    )
    return or_(
        *(and_(table.level == level, table.subject == subject) for level, subject in subjects)
    )


class Bin(NamedTuple):
    """What one row of RejectionCount counts."""

    tenant_id: str
    key_id: str
    minute: datetime
    reason: str
    limit: str


class RejectionRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def count(self, bin: Bin, more: int) -> None:
        """Add to the minute's row; several workers may do so at once."""
        statement = self._insert(RejectionCount).values(**bin._asdict(), count=more)
        total = RejectionCount.count + statement.excluded["count"]
        keys = ["minute", "key_id", "reason", "limit"]
        await self._session.execute(
            statement.on_conflict_do_update(index_elements=keys, set_={"count": total})
        )

    async def sample(
        self, tenant_id: str, key_id: str, samples: Sequence[dict[str, Any]], keep: int
    ) -> None:
        """Append to the key's samples, and let the oldest go."""
        empty = self._insert(RejectionSamples).values(
            tenant_id=tenant_id, key_id=key_id, samples=[]
        )
        await self._session.execute(empty.on_conflict_do_nothing(index_elements=["key_id"]))
        statement = across_tenants(RejectionSamples).where(RejectionSamples.key_id == key_id)
        row = (await self._session.scalars(statement.with_for_update())).one()
        row.samples = [*row.samples, *samples][-keep:]
        await self._session.flush()

    async def counts_of(self, tenant_id: str, since: datetime) -> Sequence[RejectionCount]:
        statement = across_tenants(RejectionCount).where(
            RejectionCount.tenant_id == tenant_id, RejectionCount.minute >= since
        )
        return (await self._session.scalars(statement.order_by(RejectionCount.minute))).all()

    async def totals(
        self,
        by: Administrator,
        since: datetime,
        tenant_id: str | None,
        limit: int,
        order: str = "-turned",
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        """Tenant, key, reason and limit with their sum, first and last minute, in this order."""
        keys = (
            RejectionCount.tenant_id,
            RejectionCount.key_id,
            RejectionCount.reason,
            RejectionCount.limit,
        )
        count, minute = func.sum(RejectionCount.count), RejectionCount.minute
        statement = visible_to(by, RejectionCount).where(minute >= since)
        if tenant_id is not None:
            statement = statement.where(RejectionCount.tenant_id == tenant_id)
        first, last = func.min(minute), func.max(minute)
        orders = {"limit": RejectionCount.limit, "turned": count, "first": first, "last": last}
        column = orders.get(order.removeprefix("-"), count)
        is_ascending = order in orders
        ordered = (column.asc() if is_ascending else column.desc(), *keys)
        rows = statement.with_only_columns(*keys, count, first, last).group_by(*keys)
        return (await self._session.execute(rows.order_by(*ordered).limit(limit))).all()

    async def by_minute(self, by: Administrator, since: datetime) -> dict[datetime, int]:
        statement = (
            visible_to(by, RejectionCount)
            .where(RejectionCount.minute >= since)
            .group_by(RejectionCount.minute)
            .with_only_columns(RejectionCount.minute, func.sum(RejectionCount.count))
        )
        return {minute: int(count) for minute, count in await self._session.execute(statement)}

    async def samples_of(
        self, tenant_id: str, by: Administrator = COMMAND_LINE
    ) -> Sequence[RejectionSamples]:
        statement = visible_to(by, RejectionSamples).where(RejectionSamples.tenant_id == tenant_id)
        return (await self._session.scalars(statement.order_by(RejectionSamples.key_id))).all()

    async def samples_within(
        self, by: Administrator, minutes: Period, most: int
    ) -> Sequence[RejectionSamples]:
        """Of the keys, so many at most, that something turned away within these minutes."""
        start, end = minutes
        refused = visible_to(by, RejectionCount).where(
            RejectionCount.minute >= start, RejectionCount.minute < end
        )
        keys = refused.with_only_columns(RejectionCount.key_id).distinct().limit(most)
        statement = visible_to(by, RejectionSamples).where(RejectionSamples.key_id.in_(keys))
        return (await self._session.scalars(statement)).all()

    async def trim_samples(self, tenant_id: str, before: datetime) -> int:
        """Forget samples from before then; of how many keys."""
        statement = across_tenants(RejectionSamples).where(RejectionSamples.tenant_id == tenant_id)
        count = 0
        for row in await self._session.scalars(statement.with_for_update()):
            kept = [each for each in row.samples if datetime.fromisoformat(each["at"]) >= before]
            count += kept != row.samples
            row.samples = kept
        await self._session.flush()
        return count

    def _insert(
        self, table: type[RejectionCount] | type[RejectionSamples]
    ) -> sqlite.Insert | postgresql.Insert:
        """Both databases know ON CONFLICT; SQLAlchemy has it in each dialect's own insert."""
        name = self._session.get_bind().dialect.name
        return sqlite.insert(table) if name == "sqlite" else postgresql.insert(table)
