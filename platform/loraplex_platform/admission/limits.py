"""The words of the limiter: what is limited, how much a request takes, what was found.

A new dimension is a new `Dimension` value; neither the stores nor the limiter know any by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple

Kind = Literal["rate", "lease", "day", "month", "window", "stock"]
Level = Literal["key", "project", "tenant"]
Code = Literal["rate_limit_exceeded", "insufficient_quota"]

MAX_EXACT = 2**53  # Redis scripts count in doubles
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Dimension:
    """What a limit counts and how it forgets.

    rate: GCRA, a full bucket of `value` that refills in `period_s`. lease: what unfinished requests
    hold. day, month: what was settled since the calendar period began (UTC), plus what is held.
    stock: what exists; no request takes any, it is checked where more of it is made.
    window: the same for a period whose end the limit tells, as a day of the tenant's own zone.
    """

    name: str
    unit: str  # which of a request's amounts it charges
    kind: Kind
    period_s: int = 60  # of a rate
    code: Code = "rate_limit_exceeded"
    strict: bool = False  # refuse, rather than guess, while the shared store is away

    @property
    def most(self) -> int:
        """The largest value that can be counted to."""
        return MAX_EXACT // (self.period_s * 1000) if self.kind == "rate" else MAX_EXACT


REQUESTS_PER_MINUTE = Dimension("requests_per_minute", "requests", "rate")
TOKENS_PER_MINUTE = Dimension("tokens_per_minute", "tokens", "rate")
CONCURRENT_REQUESTS = Dimension("concurrent_requests", "running", "lease")
QUEUED_REQUESTS = Dimension("queued_requests", "queued", "lease")
TOKENS_PER_DAY = Dimension("tokens_per_day", "tokens", "day")
# In nano-USD: 2^53 of them are nine million dollars.
BUDGET_PER_DAY = Dimension(
    "budget_per_day", "spend", "window", code="insufficient_quota", strict=True
)
BUDGET_PER_MONTH = Dimension(
    "budget_per_month", "spend", "window", code="insufficient_quota", strict=True
)
# What is left of prepaid credits, for a tenant who may not owe anything.
PREPAID_CREDIT = Dimension(
    "prepaid_credit", "spend", "window", code="insufficient_quota", strict=True
)
TOKENS_PER_MONTH = Dimension("tokens_per_month", "tokens", "month", code="insufficient_quota")
ADAPTER_BYTES = Dimension("adapter_bytes", "adapter_bytes", "stock", code="insufficient_quota")
REGISTERED_PREFIX_TOKENS = Dimension(
    "registered_prefix_tokens", "prefix_tokens", "stock", code="insufficient_quota"
)
# What waits in batch jobs: counted in their own tables, because it outlives every process.
ENQUEUED_BATCH_TOKENS = Dimension("enqueued_batch_tokens", "enqueued", "lease")
DIMENSIONS: Mapping[str, Dimension] = {
    dimension.name: dimension
    for dimension in (
        REQUESTS_PER_MINUTE,
        TOKENS_PER_MINUTE,
        CONCURRENT_REQUESTS,
        QUEUED_REQUESTS,
        TOKENS_PER_DAY,
        TOKENS_PER_MONTH,
        ADAPTER_BYTES,
        REGISTERED_PREFIX_TOKENS,
        ENQUEUED_BATCH_TOKENS,
    )
}

MONEY = (BUDGET_PER_DAY, BUDGET_PER_MONTH, PREPAID_CREDIT)  # budgets and credits set these
DIMENSIONS_OF_CLAIMS: Mapping[str, Dimension] = {
    **DIMENSIONS,
    **{dimension.name: dimension for dimension in MONEY},
}


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `value` of a dimension for one key, project or tenant."""

    dimension: Dimension
    level: Level
    subject: str  # the id of the key, project or tenant
    value: int
    strict: bool = False
    ends_ms: int = 0  # of a window: Unix time

    def __post_init__(self) -> None:
        if not 0 <= self.value <= self.dimension.most:
            raise ValueError(f"{self.name}: {self.value} is not a countable limit")

    @property
    def name(self) -> str:
        return f"{self.dimension.name}:{self.level}:{self.subject}"

    @property
    def key(self) -> str:
        """What its state is kept under: each window has a state of its own."""
        return f"{self.name}:{self.ends_ms}" if self.dimension.kind == "window" else self.name

    def period_end_ms(self, now_ms: int) -> int:
        """When the period that contains this moment ends; 0 where there are no periods."""
        kind = self.dimension.kind
        return self.ends_ms if kind == "window" else period_end_ms(kind, now_ms)

    @property
    def is_strict(self) -> bool:
        return self.strict or self.dimension.strict


class Charge(NamedTuple):
    """What one request takes from one limit."""

    limit: Limit
    amount: int


class Reading(NamedTuple):
    """How full a limit is: with the request, if it was admitted; without, if it was not."""

    used: int
    reset_ms: int  # until the limit is unused, if nothing more comes; 0 for a lease
    wait_ms: int | None  # 0: there is room; None: no waiting makes room
    is_unseeded: bool = False  # a calendar period whose past the store was not told
    held: int = 0  # the part of `used` that unfinished requests hold, and may give back


class Outcome(NamedTuple):
    """The answer to one atomic step; the readings stand in the order of the charges."""

    admitted: bool
    readings: tuple[Reading, ...]
    is_local: bool = False  # decided by this process alone, because the shared store is away


@dataclass(frozen=True, slots=True)
class Claim:
    """What one request took of its limits; `Gate.settle` ends it, from any process."""

    id: str
    tenant: str
    charges: tuple[Charge, ...]
    readings: tuple[Reading, ...] = ()
    taken_at_s: float = 0.0  # Unix time
    is_local: bool = False  # reserved while the shared store was away

    def unused(self) -> Mapping[str, int]:
        """What to settle with when the request took nothing."""
        return {charge.limit.dimension.unit: 0 for charge in self.charges}

    def leases(self, unit: str) -> "Claim":
        """The part of it that only says that the request is there, in this unit."""
        return replace(
            self,
            charges=tuple(
                charge
                for charge in self.charges
                if charge.limit.dimension.kind == "lease" and charge.limit.dimension.unit == unit
            ),
            readings=(),
        )

    def has_tight_leases(self) -> bool:
        """Whether it took a place of which less than half were free: others may wait for it."""
        return any(
            charge.limit.dimension.kind == "lease" and 2 * reading.used > charge.limit.value
            for charge, reading in zip(self.charges, self.readings, strict=False)
        )


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a request was not admitted; nothing was consumed.

    held: all that is missing is held by requests at work, which may give it back.
    """

    limit: Limit
    requested: int
    used: int
    retry_after_s: float | None  # None: waiting does not help
    reason: Literal["exceeded", "held", "too_large", "store_unavailable"]
    charges: tuple[Charge, ...] = ()
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """What a request asks for; `estimates` is the part of the amounts that nobody knows yet."""

    id: str
    tenant: str
    amounts: Mapping[str, int]  # by unit
    ttl_s: float  # no shorter than the request's deadline
    estimates: Mapping[str, int] = field(default_factory=dict)

    def firm(self, limit: Limit) -> int:
        """The least that a limit must have left."""
        unit = limit.dimension.unit
        return self.amounts[unit] - self.estimates.get(unit, 0)

    def charges(self, limits: Sequence[Limit]) -> tuple[Charge, ...]:
        """An estimate is cut where it alone would exceed a limit."""
        return tuple(
            Charge(limit, self._amount(limit))
            for limit in limits
            if limit.dimension.unit in self.amounts
        )

    def _amount(self, limit: Limit) -> int:
        amount = self.amounts[limit.dimension.unit]
        return min(
            amount, max(self.firm(limit), limit.value, 1)
        )  # of nothing, not even a guess is left


def period_end_ms(kind: Kind, now_ms: int) -> int:
    """When the calendar day or month (UTC) that contains this moment ends; 0 for other kinds."""
    if kind == "day":
        return (now_ms // DAY_MS + 1) * DAY_MS
    if kind == "month":
        today = datetime.fromtimestamp(now_ms / 1000, UTC)
        year, month = divmod(today.year * 12 + today.month, 12)  # of the month that follows
        return int(datetime(year, month + 1, 1, tzinfo=UTC).timestamp()) * 1000
    return 0
