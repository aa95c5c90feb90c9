"""The limiter of the API: every request meets the limits of its key, project and tenant."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from loraplex_platform.admission.effective import EffectiveLimits
from loraplex_platform.admission.gate import Gate
from loraplex_platform.admission.headers import limit_headers
from loraplex_platform.admission.limiter import Actual, Demand, Reservation
from loraplex_platform.admission.limits import Claim, Limit, Need, Rejection
from loraplex_platform.admission.metrics import LimiterMetrics
from loraplex_platform.admission.rejections import RejectionLog
from loraplex_platform.admission.spend_holds import SpendHolds
from loraplex_platform.kit.errors import Overloaded, QuotaExceeded, QuotaHeld, RateLimited
from loraplex_platform.usage.money import nano_of
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.rating import Tokens

NANO = 10**9  # nano-USD in a dollar


class TenantLimiter:
    """Finds the limits, asks the gate, says no in OpenAI's words, and notes why."""

    def __init__(
        self,
        gate: Gate,
        limits: EffectiveLimits,
        rejections: RejectionLog,
        metrics: LimiterMetrics,
        claim_ttl_s: float,
        prices: PriceService,
        holds: SpendHolds,
    ) -> None:
        self._gate = gate
        self._limits = limits
        self._rejections = rejections
        self._metrics = metrics
        self._claim_ttl_s = claim_ttl_s
        self._prices = prices
        self._holds = holds

    async def reserve(self, demand: Demand) -> Reservation:
        """One round trip to the store; raises RateLimited, QuotaExceeded or Overloaded.

        Where only requests at work hold what this one needs, it waits until some have ended.
        """
        limits, tenant = await self._limits.of(demand.principal), demand.principal.tenant_id
        answer = await self._ask(demand, limits)
        if _is_held(answer):
            ask = partial(self._ask, demand, limits)
            answer = await self._gate.patience.until(tenant, ask, _is_held, answer)
        if _is_held(answer):
            answer = await self._ask(demand, limits, is_patient=False)
        if isinstance(answer, Rejection):
            self._metrics.rejected(answer.limit.dimension.name, demand.tier)
            self._rejections.add(demand.principal, demand.request_id, answer)
            raise error_of(answer, demand.model)
        if _is_priced(limits):
            await self._hold(demand, answer)
        self._metrics.opened(demand.tier)
        return Reservation(demand, limit_headers(answer.charges, answer.readings), answer)

    async def _ask(
        self, demand: Demand, limits: Sequence[Limit], *, is_patient: bool = True
    ) -> Claim | Rejection:
        """With what is known of answers at this moment."""
        started_s = time.perf_counter()
        need = await self._need(demand, limits)
        answer = await self._gate.admit(need, limits, is_patient=is_patient)
        self._metrics.took(time.perf_counter() - started_s)
        return answer

    async def started(self, reservation: Reservation) -> None:
        assert reservation.claim is not None, "not ours"
        await self._gate.release(reservation.claim, "queued")

    async def settle(self, reservation: Reservation, actual: Actual | None) -> None:
        demand, claim = reservation.demand, reservation.claim
        assert claim is not None, "not ours"
        self._metrics.closed(demand.tier)
        if actual is not None and actual.completion_tokens:
            self._gate.observe_output(
                demand.principal.tenant_id, demand.model, actual.completion_tokens
            )
        if actual is None:
            await self._end(demand, claim, claim.unused())
            return
        took = actual.prompt_tokens + actual.completion_tokens
        used = {"tokens": took}
        if _is_priced(charge.limit for charge in claim.charges):
            used["spend"] = await self._nano(demand, actual.paid)
        await self._end(demand, claim, used)
        for limit, reserved in claim.charges:
            if limit.dimension.unit == "tokens":
                self._metrics.estimated(reserved, took)
                break

    async def _hold(self, demand: Demand, claim: Claim) -> None:
        """What may be spent is durable before the engine works; or nothing was admitted."""
        try:
            await self._holds.take(demand.request_id, claim, self._claim_ttl_s)
        except BaseException as error:
            await self._gate.settle(claim, claim.unused())
            if isinstance(error, SQLAlchemyError | OSError):
                raise Overloaded("Spending cannot be recorded.", retry_after_s=1.0) from error
            raise

    async def _end(self, demand: Demand, claim: Claim, used: Mapping[str, int]) -> None:
        """What the shared store has not heard yet, whoever sweeps the holds makes sure of later."""
        is_told = await self._gate.settle(claim, used)
        if is_told and _is_priced(charge.limit for charge in claim.charges):
            self._holds.delivered(demand.request_id)

    async def _need(self, demand: Demand, limits: Sequence[Limit]) -> Need:
        tenant = demand.principal.tenant_id
        estimate = self._gate.estimate_output(tenant, demand.model, demand.max_tokens)
        amounts = {"requests": 1, "running": 1, "queued": 1}
        amounts["tokens"] = demand.prompt_tokens + estimate
        estimates = {"tokens": estimate}
        if _is_priced(limits):
            estimates["spend"] = await self._nano(demand, Tokens(completion=estimate))
            prompt = await self._nano(demand, Tokens(uncached_prompt=demand.prompt_tokens))
            amounts["spend"] = prompt + estimates["spend"]
        return Need(demand.request_id, tenant, amounts, self._claim_ttl_s, estimates)

    async def _nano(self, demand: Demand, tokens: Tokens) -> int:
        if demand.sku is None:
            return 0
        tenant_id, sku = demand.principal.tenant_id, demand.sku
        return nano_of(await self._prices.quote(tenant_id, sku, tokens, demand.started_at))


def _is_priced(limits: Iterable[Limit]) -> bool:
    return any(limit.dimension.unit == "spend" for limit in limits)


def _is_held(answer: Claim | Rejection) -> bool:
    return isinstance(answer, Rejection) and answer.reason == "held"


def error_of(rejection: Rejection, model: str) -> RateLimited | Overloaded:
    """What a client is told: the limit, how full it is, and when to come back."""
    limit, wait_s = rejection.limit, rejection.retry_after_s
    what = limit.dimension.name.replace("_", " ")
    if rejection.reason == "store_unavailable":
        message = f"The limit on {what} of this {limit.level} cannot be checked at the moment."
        return Overloaded(message, retry_after_s=wait_s or 1.0)
    if limit.dimension.unit == "spend":
        kind = QuotaHeld if rejection.reason == "held" else QuotaExceeded
        return kind(
            f"You exceeded the {what} of this {limit.level}: "
            f"${limit.value / NANO:.4f}, of which ${rejection.used / NANO:.4f} are used or reserved.",
            retry_after_s=wait_s,
        )
    message = (
        f"Rate limit reached for {model} on {what} of this {limit.level}: "
        f"Limit {limit.value}, Used {rejection.used}, Requested {rejection.requested}."
    )
    headers = limit_headers(rejection.charges, rejection.readings)
    if limit.dimension.code == "insufficient_quota":
        return QuotaExceeded(message, retry_after_s=wait_s, headers=headers)
    if rejection.reason == "too_large":
        advice = " The request alone exceeds the limit: it must be smaller."
    else:
        advice = f" Please try again in {wait_s:g}s."
    return RateLimited(
        message + advice,
        retry_after_s=wait_s,
        dimension=type_of(limit.dimension.unit, limit.dimension.name),
        headers=headers,
    )


def type_of(unit: str, dimension: str) -> str:
    """OpenAI's error type for its own two dimensions, the dimension's name for ours."""
    return unit if unit in ("requests", "tokens") else dimension
