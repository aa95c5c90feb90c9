"""What was used since a day or month began, for a store that lost it."""

from datetime import UTC, datetime

from loraplex_platform.admission.limits import BUDGET_PER_DAY, Limit
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.usage.budgets import BudgetRepository
from loraplex_platform.usage.money import nano_of
from loraplex_platform.usage.periods import BUCKET, Span, period_of
from loraplex_platform.usage.repository import UsageRepository
from loraplex_platform.usage.spending import Spending


class UsageHistory:
    """Knows tokens and money; other units start each process from nothing."""

    def __init__(self, database: Database, clock: Clock, spending: Spending) -> None:
        self._database = database
        self._clock = clock
        self._spending = spending

    async def __call__(self, tenant_id: str, limit: Limit) -> int:
        if limit.dimension.unit == "spend":
            return await self._spent_nano(tenant_id, limit)
        if limit.dimension.unit != "tokens":
            return 0
        today = self._clock.now().astimezone(UTC).date()
        first = today.replace(day=1) if limit.dimension.kind == "month" else today
        since = datetime(first.year, first.month, first.day, tzinfo=UTC)
        project_id = limit.subject if limit.level == "project" else None
        key_id = limit.subject if limit.level == "key" else None
        async with self._database.reading() as session:
            usage = UsageRepository(session)
            return await usage.tokens_since(tenant_id, since, project_id=project_id, key_id=key_id)

    async def _spent_nano(self, tenant_id: str, limit: Limit) -> int:
        """Of the window that the limit's end belongs to."""
        span: Span = "day" if limit.dimension == BUDGET_PER_DAY else "month"
        last = datetime.fromtimestamp(limit.ends_ms / 1000, UTC) - BUCKET
        async with self._database.reading() as session:
            zone = await BudgetRepository(session).zone(tenant_id)
            return nano_of(
                await self._spending.pico(
                    session, tenant_id, period_of(last, span, zone), limit.level, limit.subject
                )
            )
