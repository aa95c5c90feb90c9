"""The log of requests: what happened to each, never what was said."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import tuple_

from loraplex_platform.db.database import Database
from loraplex_platform.db.scope import visible_to
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.usage.models import UsageEvent
from loraplex_platform.usage.periods import EPOCH

NEWEST_FIRST = (UsageEvent.started_at.desc(), UsageEvent.request_id.desc())

SEARCHED = 20_000  # requests of all tenants, for those that a filter fits


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests to show; None does not filter."""

    tenant_id: str | None = None
    key_id: str | None = None
    model: str | None = None
    tier: str | None = None
    outcome: str | None = None
    since: datetime | None = None

    @property
    def is_rare(self) -> bool:
        """Whether it may fit few requests of all tenants, so that finding a page takes long."""
        return self.tenant_id is None and any((self.key_id, self.model, self.tier, self.outcome))


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
        statement = visible_to(by, UsageEvent)
        for name in ("tenant_id", "key_id", "model", "tier", "outcome"):
            value = getattr(wanted, name)
            if value is not None:
                statement = statement.where(getattr(UsageEvent, name) == value)
        if wanted.since is not None:
            statement = statement.where(UsageEvent.started_at >= wanted.since)
        if wanted.is_rare:
            statement = statement.where(UsageEvent.started_at >= await self._searched(by, after))
        last = None if after is None else await self.find(by, after)
        if last is not None:
            place = tuple_(UsageEvent.started_at, UsageEvent.request_id)
            statement = statement.where(place < (last.started_at, last.request_id))
        async with self._database.reading(by) as session:
            rows = await session.scalars(statement.order_by(*NEWEST_FIRST).limit(limit))
            return rows.all()

    async def _searched(self, by: Administrator, after: str | None) -> datetime:
        """How far back a search for rare requests goes: the newest SEARCHED of all tenants."""
        last = None if after is None else await self.find(by, after)
        newest = visible_to(by, UsageEvent).with_only_columns(UsageEvent.started_at)
        if last is not None:
            newest = newest.where(UsageEvent.started_at <= last.started_at)
        newest = newest.order_by(UsageEvent.started_at.desc()).offset(SEARCHED).limit(1)
        async with self._database.reading(by) as session:
            return await session.scalar(newest) or EPOCH

    async def find(self, by: Administrator, request_id: str) -> UsageEvent | None:
        async with self._database.reading(by) as session:
            own = visible_to(by, UsageEvent)
            return await session.scalar(own.where(UsageEvent.request_id == request_id))
