"""Statements on limits and on rejections."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import and_, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.admission.models import LimitRule, RejectionCount, RejectionSamples
from loraplex_platform.db.scope import across_tenants, for_tenant
from loraplex_platform.kit.principal import Principal


class LimitRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def binding(self, principal: Principal) -> Sequence[LimitRule]:
        """The rules of the principal's tenant, project and key."""
        subjects = (
            ("tenant", principal.tenant_id),
            ("project", principal.project_id),
            ("key", principal.key_id),
        )
        binds = [
            and_(LimitRule.level == level, LimitRule.subject == subject)
            for level, subject in subjects
        ]
        statement = for_tenant(principal, LimitRule).where(or_(*binds))
        return (await self._session.scalars(statement)).all()

    async def of_tenant(self, tenant_id: str) -> Sequence[LimitRule]:
        statement = across_tenants(LimitRule).where(LimitRule.tenant_id == tenant_id)
        order = (LimitRule.level, LimitRule.subject, LimitRule.dimension)
        return (await self._session.scalars(statement.order_by(*order))).all()

    async def locked(self, tenant_id: str, dimension: str) -> LimitRule | None:
        """The tenant's own rule; no other transaction locks it meanwhile."""
        statement = across_tenants(LimitRule).where(
            LimitRule.tenant_id == tenant_id,
            LimitRule.level == "tenant",
            LimitRule.dimension == dimension,
        )
        return await self._session.scalar(statement.with_for_update())

    async def put(self, rule: LimitRule) -> None:
        await self._session.merge(rule)
        await self._session.flush()

    async def remove(self, level: str, subject: str, dimension: str) -> None:
        statement = across_tenants(LimitRule).where(
            LimitRule.level == level,
            LimitRule.subject == subject,
            LimitRule.dimension == dimension,
        )
        rule = await self._session.scalar(statement)
        if rule is not None:
            await self._session.delete(rule)
            await self._session.flush()


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

    async def samples_of(self, tenant_id: str) -> Sequence[RejectionSamples]:
        statement = across_tenants(RejectionSamples).where(RejectionSamples.tenant_id == tenant_id)
        return (await self._session.scalars(statement.order_by(RejectionSamples.key_id))).all()

    def _insert(
        self, table: type[RejectionCount] | type[RejectionSamples]
    ) -> sqlite.Insert | postgresql.Insert:
        """Both databases know ON CONFLICT; SQLAlchemy has it in each dialect's own insert."""
        name = self._session.get_bind().dialect.name
        return sqlite.insert(table) if name == "sqlite" else postgresql.insert(table)
