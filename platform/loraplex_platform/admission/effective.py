"""Which limits bind a caller at this moment, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.admission.limits import (
    BUDGET_PER_DAY,
    BUDGET_PER_MONTH,
    DIMENSIONS,
    PREPAID_CREDIT,
    Dimension,
    Kind,
    Level,
    Limit,
)
from loraplex_platform.admission.repository import LimitRepository
from loraplex_platform.db.database import Database
from loraplex_platform.db.remembered import Remembered
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Principal
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.billing_repository import BillingRepository
from loraplex_platform.usage.budgets import Budget, BudgetRepository
from loraplex_platform.usage.money import nano_of
from loraplex_platform.usage.periods import Span
from loraplex_platform.usage.prepaid import Allowance, allowance_of

CACHE_S = 0.5  # how long a changed limit may go unseen: commands promise a second
BUDGETS: dict[Span, Dimension] = {"day": BUDGET_PER_DAY, "month": BUDGET_PER_MONTH}


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """A limit, and where its value comes from."""

    limit: Limit
    source: Literal["override", "rule", "plan", "budget", "credit"]
    until: datetime | None = None  # when an override ends


class EffectiveLimits:
    """The one place that says what binds a principal; reads at most once in CACHE_S for each."""

    def __init__(
        self, database: Database, clock: Clock, kinds: Sequence[Kind] | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._kinds = kinds  # None: all
        self._known: Remembered[Principal, tuple[EffectiveLimit, ...]] = Remembered(clock, CACHE_S)
        database.news.subscribe(self._forget)

    async def of(self, principal: Principal) -> tuple[Limit, ...]:
        async def read() -> tuple[EffectiveLimit, ...]:
            async with self._database.reading(principal) as session:
                return await effective_limits(session, principal, self._clock.now())

        now = self._clock.now()
        known = await self._known.get(principal, read)
        return tuple(
            e.limit
            for e in known
            if (e.until is None or e.until > now)
            and (self._kinds is None or e.limit.dimension.kind in self._kinds)
        )

    def _forget(self, tenants: frozenset[str | None]) -> None:
        """A plan's change may be anybody's."""
        self._known.forget(lambda who: who.tenant_id in tenants or None in tenants)


async def effective_limits(
    session: AsyncSession, principal: Principal, now: datetime
) -> tuple[EffectiveLimit, ...]:
    """An override before a rule, a rule before what the tenant's plan says."""
    found: dict[tuple[str, str], EffectiveLimit] = {}
    for dimension, value in (await _plan_limits(session, principal)).items():
        limit = _limit("tenant", principal.tenant_id, dimension, value)
        found["tenant", dimension] = EffectiveLimit(limit, "plan")
    limits = LimitRepository(session)
    for rule in await limits.binding(principal):
        limit = _limit(rule.level, rule.subject, rule.dimension, rule.value, rule.strict)
        found[rule.level, rule.dimension] = EffectiveLimit(limit, "rule")
    for override in await limits.overriding(principal, now):
        standing = found.get((override.level, override.dimension))
        strict = standing is not None and standing.limit.strict
        limit = _limit(override.level, override.subject, override.dimension, override.value, strict)
        found[override.level, override.dimension] = EffectiveLimit(
            limit, "override", override.expires_at
        )
    profile = await BillingRepository(session).profile(principal.tenant_id)
    budgets = await BudgetRepository(session).binding(principal, ZoneInfo(profile.zone))
    hard = [EffectiveLimit(_budget(b, now), "budget") for b in budgets if b.is_hard]
    allowance = await allowance_of(session, profile, now)
    credit = [] if allowance is None else [_credit(principal.tenant_id, allowance)]
    return (*found.values(), *hard, *credit)


async def _plan_limits(session: AsyncSession, principal: Principal) -> dict[str, int]:
    plan = await TenantRepository(session).own_plan(principal)
    return {} if plan is None else plan.limits


def _limit(level: str, subject: str, dimension: str, value: int, strict: bool = False) -> Limit:
    known: Level = level  # type: ignore[assignment]  # the service wrote a Level
    return Limit(DIMENSIONS[dimension], known, subject, value, strict)


def _credit(tenant_id: str, allowance: Allowance) -> EffectiveLimit:
    limit = Limit(
        dimension=PREPAID_CREDIT,
        level="tenant",
        subject=tenant_id,
        value=nano_of(allowance.pico),
        ends_ms=int(allowance.month.end.timestamp()) * 1000,
    )
    return EffectiveLimit(limit, "credit")


def _budget(budget: Budget, now: datetime) -> Limit:
    return Limit(
        dimension=BUDGETS[budget.span],
        level=budget.level,
        subject=budget.subject,
        value=nano_of(budget.pico),
        ends_ms=int(budget.window(now).end.timestamp()) * 1000,
    )
