"""Statements on usage events as a log of requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.paging import Sorting, nth_newest
from loraplex_platform.db.scope import visible_to
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.usage.models import UsageEvent
from loraplex_platform.usage.periods import EPOCH

SEARCHED = 20_000  # requests of all tenants, for those that a filter fits
NEWEST_FIRST = (UsageEvent.started_at.desc(), UsageEvent.request_id.desc())


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


REQUESTS = Sorting(
    UsageEvent.request_id,
    {
        "prompt": UsageEvent.prompt_tokens,
        "cached": UsageEvent.cached_tokens,
        "out": UsageEvent.completion_tokens,
        "queue": UsageEvent.queue_s,
        "first": UsageEvent.ttft_s,
        "total": UsageEvent.total_s,
    },
)


class RequestRepository:
    def __init__(self, session: AsyncSession, by: Administrator) -> None:
        self._session = session
        self._by = by

    async def page(
        self, wanted: RequestFilter, before: UsageEvent | None, limit: int
    ) -> Sequence[UsageEvent]:
        """Newest first, those that started before this one."""
        statement = _narrowed(visible_to(self._by, UsageEvent), wanted)
        since = wanted.since or EPOCH
        if wanted.is_rare:  # one bound: of two, SQLite may seek by the wider
            since = max(since, await self._searched(before))
        statement = statement.where(UsageEvent.started_at >= since)
        if before is not None:
            place = tuple_(UsageEvent.started_at, UsageEvent.request_id)
            statement = statement.where(place < (before.started_at, before.request_id))
        return (await self._session.scalars(statement.order_by(*NEWEST_FIRST).limit(limit))).all()

    async def sorted_page(
        self, wanted: RequestFilter, order: str, after: str | None, limit: int
    ) -> Sequence[UsageEvent]:
        """In an order of REQUESTS, of the newest SEARCHED of the tenant or of all."""
        seen = visible_to(self._by, UsageEvent)
        if wanted.tenant_id is not None:
            seen = seen.where(UsageEvent.tenant_id == wanted.tenant_id)
        newest = await nth_newest(self._session, seen, UsageEvent.started_at, SEARCHED)
        since = max(wanted.since or EPOCH, newest or EPOCH)
        found = _narrowed(visible_to(self._by, UsageEvent), wanted)
        within = found.where(UsageEvent.started_at >= since)
        return await REQUESTS.page(self._session, within, order, after, limit)

    async def _searched(self, before: UsageEvent | None) -> datetime:
        """How far back a search for rare requests goes: the newest SEARCHED of all tenants."""
        newest = visible_to(self._by, UsageEvent).with_only_columns(UsageEvent.started_at)
        if before is not None:
            newest = newest.where(UsageEvent.started_at <= before.started_at)
        newest = newest.order_by(UsageEvent.started_at.desc()).offset(SEARCHED).limit(1)
        return await self._session.scalar(newest) or EPOCH

    async def find(self, request_id: str) -> UsageEvent | None:
        own = visible_to(self._by, UsageEvent)
        return await self._session.scalar(own.where(UsageEvent.request_id == request_id))


def _narrowed(statement: Select[UsageEvent], wanted: RequestFilter) -> Select[UsageEvent]:
    """By all but the time."""
    for name in ("tenant_id", "key_id", "model", "tier", "outcome"):
        value = getattr(wanted, name)
        if value is not None:
            statement = statement.where(getattr(UsageEvent, name) == value)
    return statement
