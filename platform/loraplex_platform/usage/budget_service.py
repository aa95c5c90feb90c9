"""What an operator may do with budgets, and who is told when one runs out."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import BudgetEvent
from loraplex_platform.events.outbox import emit
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidRequest, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.billing_models import BudgetAlert, BudgetRow
from loraplex_platform.usage.books import prune_minutes
from loraplex_platform.usage.budgets import Budget, BudgetRepository, budget_of
from loraplex_platform.usage.money import text_of
from loraplex_platform.usage.periods import Period, Span
from loraplex_platform.usage.repository import Level
from loraplex_platform.usage.spending import Spending

log = structlog.get_logger(__name__)
THRESHOLDS = (50, 80, 100)  # percent
WATCH_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget's present window; the projection goes on as the window went so far."""

    budget: Budget
    window: Period
    spent_pico: int
    projected_pico: int


class BudgetService:
    """Running servers follow a change within a second."""

    def __init__(self, database: Database, clock: Clock, spending: Spending) -> None:
        self._database = database
        self._clock = clock
        self._spending = spending

    async def set(
        self,
        tenant_id: str,
        level: Level,
        subject: str,
        span: Span,
        pico: int,
        *,
        is_hard: bool,
        by: Administrator = COMMAND_LINE,
        revision: int | None = None,
    ) -> BudgetState:
        """Set or replace the budget of a tenant, project or key for each day or month."""
        if pico < 0:
            raise InvalidRequest("a budget is not negative", param="amount")
        async with changing(self._database, by, self._clock) as session:
            await TenantRepository(session).locked(tenant_id)  # one change after the other
            budgets = BudgetRepository(session)
            row = await budgets.row(level, subject, span)
            check_revision(row, revision)
            if row is None:
                row = BudgetRow(
                    id=new_id("budget"),
                    tenant_id=tenant_id,
                    level=level,
                    subject=subject,
                    span=span,
                    created_at=self._clock.now(),
                )
            row.pico, row.is_hard = pico, is_hard
            await budgets.add(row)
            budget = budget_of(row, await budgets.zone(tenant_id))
        async with self._database.reading(by) as session:
            return await self._state(session, budget)

    async def remove(
        self, level: Level, subject: str, span: Span, *, by: Administrator = COMMAND_LINE
    ) -> str:
        """Returns its id."""
        async with changing(self._database, by, self._clock) as session:
            budgets = BudgetRepository(session)
            row = await budgets.row(level, subject, span)
            if row is None:
                raise NotFound("there is no such budget", param="subject")
            await budgets.remove(row)
        return row.id

    async def find(self, level: Level, subject: str, span: Span) -> BudgetState:
        async with self._database.reading() as session:
            budgets = BudgetRepository(session)
            row = await budgets.row(level, subject, span)
            if row is None:
                raise NotFound("there is no such budget", param="subject")
            return await self._state(session, budget_of(row, await budgets.zone(row.tenant_id)))

    async def page(self, tenant_id: str, *, after: str | None, limit: int) -> list[BudgetState]:
        async with self._database.reading() as session:
            budgets = await BudgetRepository(session).page(tenant_id, after, limit)
            return [await self._state(session, budget) for budget in budgets]

    async def of_tenant(self, tenant_id: str) -> list[BudgetState]:
        """How each of a tenant's budgets stands."""
        async with self._database.reading() as session:
            budgets = await BudgetRepository(session).of_tenant(tenant_id)
            return [await self._state(session, budget) for budget in budgets]

    async def alert_page(
        self, tenant_id: str, *, after: str | None, limit: int
    ) -> Sequence[BudgetAlert]:
        async with self._database.reading() as session:
            return await BudgetRepository(session).alert_page(tenant_id, after, limit)

    async def watch(self) -> int:
        """Note every threshold that was crossed since the last time; returns how many."""
        async with self._database.reading() as session:
            tenants = await BudgetRepository(session).tenants()
        return sum([await self._watch(tenant_id) for tenant_id in tenants])

    async def run(self) -> None:
        """Watches until it is cancelled; what a failing database misses is noted later."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            try:
                await self.watch()
                await prune_minutes(self._database, self._clock)
            except SQLAlchemyError as error:
                log.warning("budgets_not_watched", exc_info=error)

    async def _state(self, session: AsyncSession, budget: Budget) -> BudgetState:
        now = self._clock.now()
        window = budget.window(now)
        spent = await self._spending.pico(
            session, budget.tenant_id, window, budget.level, budget.subject
        )
        return BudgetState(budget, window, spent, projected(spent, window, now))

    async def _watch(self, tenant_id: str) -> int:
        crossed = [
            (state, percent)
            for state in await self.of_tenant(tenant_id)
            for percent in THRESHOLDS
            if state.spent_pico * 100 >= state.budget.pico * percent
        ]
        if not crossed:
            return 0
        count = 0
        async with self._database.unit_of_work() as session:
            budgets, now = BudgetRepository(session), self._clock.now()
            for state, percent in crossed:
                is_new = await budgets.alert(
                    state.budget, state.window, percent, state.spent_pico, now
                )
                count += is_new
                if is_new:
                    budget = state.budget
                    log.warning(
                        "budget_threshold",
                        tenant=tenant_id,
                        level=budget.level,
                        subject=budget.subject,
                        percent=percent,
                    )
                    event = _event(state, percent)
                    await emit(session, tenant_id, "budget.threshold_reached", event, now)
        return count


def _event(state: BudgetState, percent: int) -> BudgetEvent:
    budget = state.budget
    return BudgetEvent(
        id=budget.id,
        level=budget.level,
        subject=budget.subject,
        span=budget.span,
        percent=percent,
        spent=text_of(state.spent_pico),
        amount=text_of(budget.pico),
    )


def projected(spent_pico: int, window: Period, now: datetime) -> int:
    """What the window will have cost at its end, at its pace so far."""
    gone, whole = now - window.start, window.end - window.start
    return (
        spent_pico
        if not gone
        else spent_pico * (whole // gone.resolution) // (gone // gone.resolution)
    )
