"""Usage and costs over time, in OpenAI's shapes: buckets of the reader's zone, the empty ones present."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.charges import Charges
from loraplex_platform.usage.invoice_document import LABELS
from loraplex_platform.usage.models import UsageMinute, UsageQuarter
from loraplex_platform.usage.money import dollars
from loraplex_platform.usage.periods import (
    EPOCH,
    UTC_ZONE,
    Period,
    floor_to,
    hours_from,
    periods_from,
)
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.prices import Tariffs
from loraplex_platform.usage.rating import rate, sums_of_quarter
from loraplex_platform.usage.repository import UsageRepository

Width = Literal["1m", "1h", "1d", "1mo"]  # months are our own
MINUTE = timedelta(minutes=1)
LIMITS: dict[Width, tuple[int, int]] = {
    "1m": (60, 1440),
    "1h": (24, 168),
    "1d": (7, 31),
    "1mo": (12, 120),
}
COST_LIMITS = (7, 180)
SERVICE_TIERS = {"batch": "flex", "standard": "default", "interactive": "priority"}
Json = dict[str, Any]
Group = tuple[Any, ...]
Sums = UsageQuarter | UsageMinute

DIMENSIONS: dict[str, Callable[[Sums], object]] = {
    "project_id": lambda row: row.project_id,
    "user_id": lambda row: None,  # people do not call the API, keys do
    "api_key_id": lambda row: row.key_id,
    "model": lambda row: row.model,
    "batch": lambda row: row.tier == "batch",
    "service_tier": lambda row: SERVICE_TIERS[row.tier],
}
BY_TENANT: dict[str, Callable[[Sums], object]] = {"tenant_id": lambda row: row.tenant_id}
COST_DIMENSIONS = ("project_id", "line_item", "api_key_id")


@dataclass(frozen=True, slots=True)
class Query:
    """Half-open; `page` is the start of the first bucket that was not shown yet."""

    start_time: int
    end_time: int | None = None
    bucket_width: Width = "1d"
    group_by: tuple[str, ...] = ()
    project_ids: tuple[str, ...] = ()
    api_key_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    limit: int | None = None
    page: str | None = None
    zone: ZoneInfo = UTC_ZONE

    def tiles(self, moment: datetime) -> Iterator[Period]:
        """Buckets from the one that contains the moment on, without end."""
        match self.bucket_width:
            case "1m":
                start = floor_to(moment, MINUTE)
                while True:
                    yield Period(start, start + MINUTE)
                    start += MINUTE
            case "1h":
                yield from hours_from(moment, self.zone)
            case "1d":
                yield from periods_from(moment, "day", self.zone)
            case "1mo":
                yield from periods_from(moment, "month", self.zone)

    def keeps(self, row: Sums) -> bool:
        return (
            (not self.project_ids or row.project_id in self.project_ids)
            and (not self.api_key_ids or row.key_id in self.api_key_ids)
            and (not self.models or row.model in self.models)
        )


class Cost(NamedTuple):
    """What something came to within a bucket."""

    bucket: datetime
    whose: Mapping[str, object]
    quantity: int
    pico: int


class Reports:
    """Reads roll-ups only; a tenant's own, or (None) those of all tenants."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def completions(
        self, tenant_id: str | None, query: Query, *, is_staff: bool = False
    ) -> Json:
        """Minutes are there for two days, hours and days for ever; staff may group by tenant."""
        dimensions = DIMENSIONS | (BY_TENANT if is_staff else {})
        _check(query.group_by, dimensions)
        buckets, has_more = self._buckets(query, LIMITS[query.bucket_width])
        table = UsageMinute if query.bucket_width == "1m" else UsageQuarter
        found: dict[datetime, dict[Group, list[int]]] = {bucket.start: {} for bucket in buckets}
        async with self._database.reading() as session:
            usage = UsageRepository(session)
            async for row in usage.sums(table, _whole(buckets), tenant_id):
                if not query.keeps(row):
                    continue
                group = tuple(dimensions[name](row) for name in query.group_by)
                groups = found[_bucket_of(row.bucket, buckets)]
                sums = groups.setdefault(group, [0, 0, 0, 0])
                cached = row.cached_prompt_tokens
                more = (row.uncached_prompt_tokens + cached, cached, row.completion_tokens)
                groups[group] = [a + b for a, b in zip(sums, (*more, row.requests), strict=True)]
        results = {
            start: [_usage_result(query.group_by, group, sums) for group, sums in _sorted(groups)]
            for start, groups in found.items()
        }
        return _page(buckets, results, has_more)

    async def costs(self, tenant_id: str | None, query: Query, *, is_staff: bool = False) -> Json:
        """By day; usage at the prices of its time, and hosting so far."""
        _check(query.group_by, (*COST_DIMENSIONS, *(BY_TENANT if is_staff else ())))
        buckets, has_more = self._buckets(query, COST_LIMITS)
        found: dict[datetime, dict[Group, tuple[int, int]]] = {b.start: {} for b in buckets}
        async with self._database.reading() as session:
            async for cost in _costs(session, tenant_id, query, buckets, self._clock.now()):
                group = tuple(cost.whose[name] for name in query.group_by)
                quantity, pico = found[cost.bucket].get(group, (0, 0))
                found[cost.bucket][group] = quantity + cost.quantity, pico + cost.pico
        results = {
            start: [_cost_result(query.group_by, group, *sums) for group, sums in _sorted(groups)]
            for start, groups in found.items()
        }
        return _page(buckets, results, has_more)

    def _buckets(self, query: Query, limits: tuple[int, int]) -> tuple[list[Period], bool]:
        usual, most = limits
        limit = usual if query.limit is None else query.limit
        if not 1 <= limit <= most:
            raise InvalidRequest(f"'limit' is from 1 to {most} here.", param="limit")
        start = _moment(query.page or query.start_time)
        end = self._clock.now() if query.end_time is None else _moment(query.end_time)
        if end <= start:
            raise InvalidRequest("'end_time' is not after 'start_time'.", param="end_time")
        asked = takewhile(lambda bucket: bucket.start < end, query.tiles(start))
        shown = list(islice(asked, limit))
        return shown, shown[-1].end < end


async def _costs(
    session: AsyncSession,
    tenant_id: str | None,
    query: Query,
    buckets: Sequence[Period],
    now: datetime,
) -> AsyncIterator[Cost]:
    """Of one tenant or of all: tokens by roll-up, then hosting."""
    books = await PriceRepository(session).books()
    tariffs: dict[str, Tariffs] = {}
    async for row in UsageRepository(session).sums(UsageQuarter, _whole(buckets), tenant_id):
        if not query.keeps(row):
            continue
        if row.tenant_id not in tariffs:
            tariffs[row.tenant_id] = Tariffs.of(books, row.tenant_id)
        assert isinstance(row, UsageQuarter)
        sku, tokens = sums_of_quarter(row)
        bucket = _bucket_of(row.bucket, buckets)
        for line in rate(sku, tokens, tariffs[row.tenant_id].at(row.bucket)):
            item = f"{row.model}, {LABELS[line.kind].lower()}"
            whose = _whose(row.tenant_id, item, row.project_id, row.key_id)
            yield Cost(bucket, whose, line.quantity, line.pico)
    if query.project_ids or query.api_key_ids or query.models:
        return
    every = await TenantRepository(session).all() if tenant_id is None else ()
    for owner_id in [tenant_id] if tenant_id is not None else [tenant.id for tenant in every]:
        charges = Charges(session, owner_id, now)
        for period, stored in await charges.hosting_by(buckets):
            whose = _whose(owner_id, f"{stored.adapter}, adapter hosting", None, None)
            yield Cost(period.start, whose, 0, stored.pico)


def _whose(
    tenant_id: str, line_item: str, project_id: str | None, key_id: str | None
) -> dict[str, object]:
    return {
        "tenant_id": tenant_id,
        "line_item": line_item,
        "project_id": project_id,
        "api_key_id": key_id,
    }


def _moment(seconds: int | str) -> datetime:
    try:
        moment = EPOCH + timedelta(seconds=int(seconds))
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{seconds!r} is not a Unix time.", param="page") from error
    if not 2 <= moment.year <= 9998:  # so that the bucket around it is a time as well
        raise InvalidRequest(f"{seconds!r} is no time of ours.", param="page")
    return moment


def _check(given: Iterable[str], known: Iterable[str]) -> None:
    unknown = set(given) - set(known)
    if unknown:
        raise InvalidRequest(f"cannot group by {', '.join(sorted(unknown))}", param="group_by")


def _whole(buckets: Sequence[Period]) -> Period:
    return Period(buckets[0].start, buckets[-1].end)


def _bucket_of(moment: datetime, buckets: Sequence[Period]) -> datetime:
    return buckets[bisect_right(buckets, moment, key=lambda bucket: bucket.start) - 1].start


def _sorted(groups: dict[Group, Any]) -> list[tuple[Group, Any]]:
    return sorted(groups.items(), key=lambda item: [str(part) for part in item[0]])


def _usage_result(names: tuple[str, ...], group: Group, sums: list[int]) -> Json:
    result: Json = dict.fromkeys(DIMENSIONS)
    counts = ("input_tokens", "input_cached_tokens", "output_tokens", "num_model_requests")
    return (
        {"object": "organization.usage.completions.result"}
        | dict(zip(counts, sums, strict=True))
        | {"input_audio_tokens": 0, "output_audio_tokens": 0}
        | result
        | dict(zip(names, group, strict=True))
    )


def _cost_result(names: tuple[str, ...], group: Group, quantity: int, pico: int) -> Json:
    result: Json = dict.fromkeys(COST_DIMENSIONS)
    return (
        {
            "object": "organization.costs.result",
            "amount": {"value": float(dollars(pico)), "currency": "usd"},
            "quantity": float(quantity),
        }
        | result
        | dict(zip(names, group, strict=True))
    )


def _page(buckets: list[Period], results: dict[datetime, list[Json]], has_more: bool) -> Json:
    return {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": int(bucket.start.timestamp()),
                "end_time": int(bucket.end.timestamp()),
                "results": results[bucket.start],
            }
            for bucket in buckets
        ],
        "has_more": has_more,
        "next_page": str(int(buckets[-1].end.timestamp())) if has_more else None,
    }
