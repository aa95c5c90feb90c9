"""The log of requests: what happened to each, never what was said."""

from collections.abc import Sequence

from loraplex_platform.db.database import Database
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.usage.models import UsageEvent
from loraplex_platform.usage.request_repository import RequestFilter, RequestRepository


class RequestLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        by: Administrator,
        wanted: RequestFilter,
        *,
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[UsageEvent]:
        """Newest first, those that started before the request `after`."""
<<<<<<< HEAD
        statement = visible_to(by, UsageEvent)
        for name in ("tenant_id", "key_id", "model", "tier", "outcome"):
            value = getattr(wanted, name)
            if value is not None:
                statement = statement.where(getattr(UsageEvent, name) == value)
        if wanted.since is not None:
            statement = statement.where(UsageEvent.started_at >= wanted.since)
        last = None if after is None else await self.find(by, after)
        if last is not None:
            place = tuple_(UsageEvent.started_at, UsageEvent.request_id)
            statement = statement.where(place < (last.started_at, last.request_id))
        async with self._database.reading(by) as session:
            rows = await session.scalars(statement.order_by(*NEWEST_FIRST).limit(limit))
            return rows.all()

    async def find(self, by: Administrator, request_id: str) -> UsageEvent | None:
        async with self._database.reading(by) as session:
            own = visible_to(by, UsageEvent)
            return await session.scalar(own.where(UsageEvent.request_id == request_id))
=======
        async with self._database.reading() as session:
            requests = RequestRepository(session, by)
            last = None if after is None else await requests.find(after)
            return await requests.page(wanted, last, limit)

    async def find(self, by: Administrator, request_id: str) -> UsageEvent | None:
        async with self._database.reading() as session:
            return await RequestRepository(session, by).find(request_id)
>>>>>>> cc01021 (Minutes are rebuilt too; README computes a bill that the ledger repeats)
