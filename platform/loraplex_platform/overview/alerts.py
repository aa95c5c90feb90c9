"""What somebody should look at now."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import visible_to
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.overview.live import Live
from loraplex_platform.usage.billing_models import BudgetAlert
from loraplex_platform.usage.reconciliation import Drift

Kind = Literal[
    "engine_silent", "engine_draining", "limiter_degraded", "many_refused", "drift", "budget"
]
MANY_SHARE, MANY = 0.1, 10  # of the last minutes' requests, and at least so many
FRESH = timedelta(days=1)  # of a budget's threshold
SHOWN = 10


class Alert(NamedTuple):
    kind: Kind
    percent: int = 0  # refused, or of the budget
    tenant_id: str | None = None
    at: datetime | None = None
    drift: Drift | None = None

    @property
    def is_bad(self) -> bool:
        """Rather than something to keep an eye on."""
        return self.kind in ("engine_silent", "many_refused", "drift") or self.percent >= 100


class Checked(Protocol):
    """The books, held against each other."""

    @property
    def alarms(self) -> Sequence[Drift]: ...


def of_parts(live: Live | None, by: Administrator, *, is_degraded: bool) -> list[Alert]:
    """The platform's own parts; the limiter is the staff's business alone."""
    alerts = []
    if live is None:
        alerts.append(Alert("engine_silent"))
    elif live.device is not None and live.device.is_draining:
        alerts.append(Alert("engine_draining"))
    if is_degraded and by.tenant_id is None:
        alerts.append(Alert("limiter_degraded"))
    return alerts


def of_refusals(refused: int, served: int) -> list[Alert]:
    """Of the last minutes."""
    if refused < MANY or refused < MANY_SHARE * (refused + served):
        return []
    return [Alert("many_refused", percent=round(100 * refused / (refused + served)))]


def of_books(books: Checked, by: Administrator) -> list[Alert]:
    """The first of those that disagree, for the staff alone."""
    shown = books.alarms[:SHOWN] if by.tenant_id is None else ()
    return [Alert("drift", tenant_id=drift.tenant_id, drift=drift) for drift in shown]


async def of_budgets(session: AsyncSession, by: Administrator, now: datetime) -> Sequence[Alert]:
    """The highest threshold that each tenant has crossed within a day, newest first."""
    statement = (
        visible_to(by, BudgetAlert)
        .where(BudgetAlert.created_at >= now - FRESH)
        .order_by(BudgetAlert.created_at.desc(), BudgetAlert.percent.desc())
        .limit(10 * SHOWN)
    )
    highest: dict[str, Alert] = {}
    for row in await session.scalars(statement):
        known = highest.get(row.tenant_id)
        if known is None or row.percent > known.percent:
            highest[row.tenant_id] = Alert("budget", row.percent, row.tenant_id, row.created_at)
    return list(highest.values())[:SHOWN]
