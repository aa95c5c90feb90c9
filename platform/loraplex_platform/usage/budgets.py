"""Budgets: money for a calendar day or month of the tenant's zone.

Nothing is ever reset: what was spent in the present window is derived from what was booked in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import and_, or_, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.paging import page_after
from loraplex_platform.db.scope import across_tenants, for_tenant
from loraplex_platform.db.upsert import insert_into
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Principal
from loraplex_platform.usage.billing_models import (
    BillingProfile,
    BudgetAlert,
    BudgetRow,
    place_of,
)
from loraplex_platform.usage.periods import UTC_ZONE, Period, Span, period_of
from loraplex_platform.usage.repository import Level


@dataclass(frozen=True, slots=True)
class Budget:
    """At most this much (hard), or a word when it is spent (soft)."""

    id: str
    tenant_id: str
    level: Level
    subject: str
    span: Span
    pico: int
    is_hard: bool
    zone: ZoneInfo
    revision: int  # another one when it changes

    def window(self, now: datetime) -> Period:
        return period_of(now, self.span, self.zone)


def span_of(text: str) -> Span:
    """Raises InvalidRequest."""
    match text:
        case "day" | "month":
            return text
        case _:
            raise InvalidRequest(f"{text!r}: a budget is for each day or month", param="span")


class BudgetRepository:
    """Statements on budgets and their alerts."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def binding(self, principal: Principal, zone: ZoneInfo) -> list[Budget]:
        """The budgets of the principal's tenant, project and key."""
        subjects = (
            ("tenant", principal.tenant_id),
            ("project", principal.project_id),
            ("key", principal.key_id),
        )
        binds = [
            and_(BudgetRow.level == level, BudgetRow.subject == subject)
            for level, subject in subjects
        ]
        rows = await self._session.scalars(for_tenant(principal, BudgetRow).where(or_(*binds)))
        return [budget_of(row, zone) for row in rows]

    async def of_tenant(self, tenant_id: str) -> list[Budget]:
        rows = await self._session.scalars(
            across_tenants(BudgetRow)
            .where(BudgetRow.tenant_id == tenant_id)
            .order_by(BudgetRow.level, BudgetRow.subject, BudgetRow.span)
        )
        zone = await self.zone(tenant_id)
        return [budget_of(row, zone) for row in rows]

    async def page(self, tenant_id: str, after: str | None, limit: int) -> list[Budget]:
        own = across_tenants(BudgetRow).where(BudgetRow.tenant_id == tenant_id)
        rows = await self._session.scalars(page_after(own, BudgetRow.id, after, limit))
        zone = await self.zone(tenant_id)
        return [budget_of(row, zone) for row in rows]

    async def tenants(self) -> Sequence[str]:
        """Those that have a budget."""
        statement = across_tenants(BudgetRow).with_only_columns(BudgetRow.tenant_id).distinct()
        return (await self._session.scalars(statement.order_by(BudgetRow.tenant_id))).all()

    async def row(self, level: Level, subject: str, span: Span) -> BudgetRow | None:
        return await self._session.scalar(
            across_tenants(BudgetRow).where(
                BudgetRow.level == level, BudgetRow.subject == subject, BudgetRow.span == span
            )
        )

    async def add(self, row: BudgetRow) -> None:
        self._session.add(row)
        await self._session.flush()

    async def remove(self, row: BudgetRow) -> None:
        alerts = across_tenants(BudgetAlert).where(BudgetAlert.budget_id == row.id)
        for alert in await self._session.scalars(alerts):
            await self._session.delete(alert)
        await self._session.flush()
        await self._session.delete(row)
        await self._session.flush()

    async def zone(self, tenant_id: str) -> ZoneInfo:
        profile = across_tenants(BillingProfile).where(BillingProfile.tenant_id == tenant_id)
        name = await self._session.scalar(profile.with_only_columns(BillingProfile.zone))
        return UTC_ZONE if name is None else ZoneInfo(name)

    async def alert(
        self, budget: Budget, window: Period, percent: int, spent_pico: int, now: datetime
    ) -> bool:
        """Note that a threshold was crossed; False where that is known."""
        statement = insert_into(self._session, BudgetAlert).values(
            tenant_id=budget.tenant_id,
            budget_id=budget.id,
            window_start=window.start,
            percent=percent,
            spent_pico=spent_pico,
            created_at=now,
        )
        returned = statement.on_conflict_do_nothing().returning(BudgetAlert.percent)
        return await self._session.scalar(returned) is not None

    async def alert_page(
        self, tenant_id: str, after: str | None, limit: int
    ) -> Sequence[BudgetAlert]:
        """By budget, the oldest first, from behind the one with the id `after`."""
        statement = across_tenants(BudgetAlert).where(BudgetAlert.tenant_id == tenant_id)
        place = (BudgetAlert.budget_id, BudgetAlert.window_start, BudgetAlert.percent)
        if after is not None:
            statement = statement.where(tuple_(*place) > place_of(after))
        return (await self._session.scalars(statement.order_by(*place).limit(limit))).all()


def budget_of(row: BudgetRow, zone: ZoneInfo) -> Budget:
    return Budget(
        row.id,
        row.tenant_id,
        row.level,  # type: ignore[arg-type]  # the service wrote a Level
        row.subject,
        row.span,  # type: ignore[arg-type]  # the service wrote a Span
        row.pico,
        row.is_hard,
        zone,
        row.revision,
    )
