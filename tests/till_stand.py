"""Admission, meter and limiter over one database and one store, as a server puts them together."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry
from tests.usage_stand import BASE_MODEL, facts

from loraplex_platform.admission.effective import EffectiveLimits
from loraplex_platform.admission.gate import Gate
from loraplex_platform.admission.history import UsageHistory
from loraplex_platform.admission.limiter import Actual, Demand, Reservation
from loraplex_platform.admission.limits import Charge
from loraplex_platform.admission.metrics import LimiterMetrics
from loraplex_platform.admission.patience import Patience
from loraplex_platform.admission.redis_store import RedisStore
from loraplex_platform.admission.rejections import RejectionLog
from loraplex_platform.admission.spend_holds import SpendHolds
from loraplex_platform.admission.store import LimitStore
from loraplex_platform.admission.tenant_limiter import TenantLimiter
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock, SystemClock
from loraplex_platform.kit.principal import Principal
from loraplex_platform.usage.books import Books
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.meter import Meter, Point, pass_by
from loraplex_platform.usage.money import nano_of
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.prices import BASE, Sku
from loraplex_platform.usage.rating import tokens_of
from loraplex_platform.usage.spending import Spending
from loraplex_platform.usage.spool import Spool

TTL_S = 900.0


@dataclass(frozen=True, slots=True)
class Till:
    """One process's way from admission to settlement, for one tenant."""

    database: Database
    store: LimitStore
    limiter: TenantLimiter
    holds: SpendHolds
    meter: Meter
    tenant_id: str

    async def reserve(self, request_id: str, prompt: int = 100, most: int = 50) -> Reservation:
        """Raises QuotaExceeded."""
        demand = Demand(
            request_id=request_id,
            principal=self.principal,
            model=BASE_MODEL,
            tier="standard",
            prompt_tokens=prompt,
            max_tokens=most,
            sku=Sku(BASE_MODEL, BASE, "standard"),
        )
        return await self.limiter.reserve(demand)

    async def record(self, request_id: str, prompt: int = 100, completion: int = 10) -> Actual:
        event = facts(
            self.tenant_id,
            request_id=request_id,
            started_at=datetime.now(UTC),
            prompt_tokens=prompt,
            completion_tokens=completion,
        )
        await self.meter.record(event)
        return Actual(prompt, 40, completion, paid=tokens_of(event))

    @property
    def principal(self) -> Principal:
        return Principal(self.tenant_id, f"proj_{self.tenant_id}", f"key_{self.tenant_id}")

    async def used_nano(self, *, after_s: float = 0.0) -> int:
        """What the limiter counts against the first limit on money, now or later."""
        async with self.database.reading():
            limits = await EffectiveLimits(self.database, SystemClock()).of(self.principal)
        [limit, *_] = [limit for limit in limits if limit.dimension.unit == "spend"]
        now_ms = int((datetime.now(UTC).timestamp() + after_s) * 1000)
        [reading] = await self.store.read(self.tenant_id, [Charge(limit, 0)], now_ms=now_ms)
        return reading.used

    async def spent_nano(self) -> int:
        """What the ledger says."""
        async with self.database.reading() as session:
            return nano_of(await LedgerRepository(session).balance(self.tenant_id, "receivable"))


@asynccontextmanager
async def open_till(
    database: Database,
    store: LimitStore,
    tenant_id: str,
    spool: Path,
    at: Callable[[Point], None] = pass_by,
    clock: Clock | None = None,
    patience_s: float = 0.0,
) -> AsyncIterator[Till]:
    """`patience_s`: how long a request waits for what others hold, before it is refused."""
    clock = clock or SystemClock()
    prices = PriceService(database, clock)
    holds = SpendHolds(database, store, clock)
    history = UsageHistory(database, clock, Spending(prices))
    limiter = TenantLimiter(
        Gate(store, history, open_holds=holds.open_of, patience=Patience(patience_s)),
        EffectiveLimits(database, clock),
        RejectionLog(database, clock),
        LimiterMetrics(CollectorRegistry()),
        TTL_S,
        prices,
        holds,
    )
    meter = Meter(database, Books(prices, clock), Spool(spool), at)
    yield Till(database, store, limiter, holds, meter, tenant_id)
    meter.close()


def redis_store(url: str) -> RedisStore:
    """With a timeout that a busy machine keeps."""
    return RedisStore(url, timeout_s=60)
