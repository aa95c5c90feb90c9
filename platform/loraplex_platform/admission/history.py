"""What was used since a day or month began, for a store that lost it."""

from datetime import UTC, datetime

from loraplex_platform.admission.limits import Limit
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.usage.repository import UsageRepository


class UsageHistory:
    """Reads usage events; knows tokens only, other units start each process from nothing."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def __call__(self, tenant_id: str, limit: Limit) -> int:
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
