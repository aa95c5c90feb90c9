"""The log of requests: what happened to each, never what was said."""

from collections.abc import Sequence

from loraplex_platform.db.database import Database
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.usage.models import UsageEvent
from loraplex_platform.usage.request_repository import REQUESTS, RequestFilter, RequestRepository


class RequestLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        by: Administrator,
        wanted: RequestFilter,
        *,
        order: str = "",
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[UsageEvent]:
        """Those behind the request `after`: newest first, or in an order of REQUESTS."""
        async with self._database.reading(by) as session:
            requests = RequestRepository(session, by)
            if order.removeprefix("-") in REQUESTS.columns:
                return await requests.sorted_page(wanted, order, after, limit)
            last = None if after is None else await requests.find(after)
            return await requests.page(wanted, last, limit)

    async def find(self, by: Administrator, request_id: str) -> UsageEvent | None:
        async with self._database.reading(by) as session:
            return await RequestRepository(session, by).find(request_id)
