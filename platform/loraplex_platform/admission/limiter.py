"""The seam where limits bind: reserve before the engine works, settle when it is done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from loraplex_engine.messages import Tier
from loraplex_platform.admission.limits import Claim
from loraplex_platform.kit.principal import Principal
from loraplex_platform.usage.prices import Sku
from loraplex_platform.usage.rating import FREE, Tokens


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks for before it is served."""

    request_id: str
    principal: Principal
    model: str
    tier: Tier
    prompt_tokens: int
    max_tokens: int  # the most it may generate, over all its sequences
    sku: Sku | None = None  # what it is sold as; None: it costs nothing
    started_at: datetime | None = None  # whose prices hold; None: now


@dataclass(frozen=True, slots=True)
class Actual:
    """What it took in the end."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    paid: Tokens = FREE


@dataclass(frozen=True, slots=True)
class Reservation:
    """What the limiter granted; headers tell the client what is left."""

    demand: Demand
    headers: Mapping[str, str] = field(default_factory=dict)
    claim: Claim | None = None  # None: nobody counts


class Limiter(Protocol):
    """Checks and charges all limits in one atomic step."""

    async def reserve(self, demand: Demand) -> Reservation:
        """Charge it all, or raise RateLimited with nothing consumed."""
        ...

    async def started(self, reservation: Reservation) -> None:
        """The request no longer waits: its first token is there."""
        ...

    async def settle(self, reservation: Reservation, actual: Actual | None) -> None:
        """Replace the estimate by what it took (None: nothing); idempotent by request id."""
        ...


class AdmitAll:
    """A limiter without limits."""

    async def reserve(self, demand: Demand) -> Reservation:
        return Reservation(demand)

    async def started(self, reservation: Reservation) -> None:
        return None

    async def settle(self, reservation: Reservation, actual: Actual | None) -> None:
        return None
