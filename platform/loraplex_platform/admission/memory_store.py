"""The limiter's state in this process: the same arithmetic as limiter.lua, in Python.

A step has no `await` in it, so the event loop cannot interleave two of them.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loraplex_platform.admission.limits import Charge, Claim, Outcome, Reading
from loraplex_platform.admission.owed import Ending

SWEEP_EVERY = 4096  # reservations


@dataclass(slots=True)
class Bucket:
    """A rate: `level` is in amount x period, and each millisecond takes `limit` from it."""

    level: int = 0
    at_ms: int = 0
    empty_ms: int = 0  # when it will have leaked it all

    def advance(self, charge: Charge, now_ms: int) -> None:
        leaked = max(0, now_ms - self.at_ms) * charge.limit.value
        self.level = max(0, self.level - leaked)
        self.at_ms = now_ms

    def wait_ms(self, charge: Charge, now_ms: int) -> int | None:
        limit = charge.limit.value
        missing = self.level + (charge.amount - limit) * period_ms(charge)
        if missing <= 0:
            return 0
        return math.ceil(missing / limit) if limit else None

    def take(self, charge: Charge, claim_id: str, expires_ms: int) -> None:
        self.level += charge.amount * period_ms(charge)
        self.empty_ms = self.at_ms + self.reset_ms(charge, self.at_ms)

    def settle(self, charge: Charge, claim_id: str, actual: int, reserved_at_ms: int) -> None:
        self.level = max(0, self.level + (actual - charge.amount) * period_ms(charge))
        self.empty_ms = self.at_ms + self.reset_ms(charge, self.at_ms)

    def used(self, charge: Charge) -> int:
        return math.ceil(self.level / period_ms(charge))

    @property
    def held(self) -> int:
        return 0

    def reset_ms(self, charge: Charge, now_ms: int) -> int:
        return math.ceil(self.level / charge.limit.value) if charge.limit.value else 0

    def is_unseeded(self, charge: Charge) -> bool:
        return False

    def is_idle(self, now_ms: int) -> bool:
        return self.empty_ms <= now_ms


@dataclass(slots=True)
class Holds:
    """A lease or a calendar period: what was settled in it, and what unfinished requests hold."""

    ends_ms: int = 0
    settled: int = 0
    held: int = 0
    is_seeded: bool = False
    holds: dict[str, tuple[int, int]] = field(default_factory=dict)  # id -> expiry, amount
    next_expiry_ms: int = 0  # not later than the earliest hold's

    def advance(self, charge: Charge, now_ms: int) -> None:
        kind = charge.limit.dimension.kind
        if kind != "lease" and self.ends_ms <= now_ms:
            self.ends_ms, self.settled = charge.limit.period_end_ms(now_ms), 0
            self.is_seeded = False
            self.held, self.holds = 0, {}
        if now_ms >= self.next_expiry_ms:
            self.holds = {id: hold for id, hold in self.holds.items() if hold[0] > now_ms}
            self.held = sum(amount for _, amount in self.holds.values())
            self.next_expiry_ms = min((expiry for expiry, _ in self.holds.values()), default=0)

    def wait_ms(self, charge: Charge, now_ms: int) -> int | None:
        missing = self.settled + self.held + charge.amount - charge.limit.value
        if missing <= 0:
            return 0
        if charge.limit.dimension.kind != "lease":
            return self.ends_ms - now_ms
        for expiry, amount in sorted(self.holds.values()):
            missing -= amount
            if missing <= 0:
                return expiry - now_ms
        raise AssertionError("a lease holds less than its sum")

    def take(self, charge: Charge, claim_id: str, expires_ms: int) -> None:
        self.holds[claim_id] = (expires_ms, charge.amount)
        self.held += charge.amount
        self.next_expiry_ms = min(self.next_expiry_ms or expires_ms, expires_ms)

    def settle(self, charge: Charge, claim_id: str, actual: int, reserved_at_ms: int) -> None:
        _, amount = self.holds.pop(claim_id, (0, 0))
        self.held -= amount
        kind = charge.limit.dimension.kind
        if kind != "lease" and charge.limit.period_end_ms(reserved_at_ms) == self.ends_ms:
            self.settled += actual

    def used(self, charge: Charge) -> int:
        return self.settled + self.held

    def reset_ms(self, charge: Charge, now_ms: int) -> int:
        return max(0, self.ends_ms - now_ms)

    def is_unseeded(self, charge: Charge) -> bool:
        return charge.limit.dimension.kind != "lease" and not self.is_seeded

    def is_idle(self, now_ms: int) -> bool:
        live = any(expiry > now_ms for expiry, _ in self.holds.values())
        return not live and self.ends_ms <= now_ms


class MemoryStore:
    """The embedded default, and the stand-in of each worker while Redis is away."""

    def __init__(self) -> None:
        self._states: dict[str, Bucket | Holds] = {}  # by limit name, see _key
        self._claims: dict[str, tuple[int, int]] = {}  # id -> reserved at, settle until
        self._until_sweep = SWEEP_EVERY

    @property
    def is_degraded(self) -> bool:
        return False

    async def reserve(
        self,
        claim: Claim,
        ttl_s: float,
        *,
        after: Sequence[Ending] = (),
        now_ms: int | None = None,
    ) -> Outcome:
        await self.end(after, now_ms=now_ms)
        now = wall_ms() if now_ms is None else now_ms
        self._sweep(now)
        if now < self._claims.get(claim.id, (0, 0))[1]:
            return Outcome(True, self._read(claim.tenant, claim.charges, now, asks=False))
        readings = self._read(claim.tenant, claim.charges, now)
        if any(reading.wait_ms != 0 for reading in readings):
            return Outcome(False, readings)
        ttl_ms = round(ttl_s * 1000)
        for charge in claim.charges:
            self._state(claim.tenant, charge, now).take(charge, claim.id, now + ttl_ms)
        self._claims[claim.id] = (now, now + 2 * ttl_ms)
        return Outcome(True, self._read(claim.tenant, claim.charges, now, asks=False))

    async def settle(
        self, claim: Claim, actual: Mapping[str, int], *, now_ms: int | None = None
    ) -> bool:
        now = wall_ms() if now_ms is None else now_ms
        reserved_at, until = self._claims.pop(claim.id, (0, -1))
        if now > until:
            return False
        for charge in claim.charges:
            state = self._state(claim.tenant, charge, now)
            used = actual.get(charge.limit.dimension.unit, charge.amount)
            state.settle(charge, claim.id, used, reserved_at)
        return True

    async def release(self, claim: Claim, unit: str, *, now_ms: int | None = None) -> None:
        now = wall_ms() if now_ms is None else now_ms
        for charge in claim.leases(unit).charges:
            state = self._state(claim.tenant, charge, now)
            state.settle(charge, claim.id, 0, now)

    async def end(self, endings: Sequence[Ending], *, now_ms: int | None = None) -> None:
        for claim, actual, is_final in endings:
            if is_final:
                await self.settle(claim, actual, now_ms=now_ms)
            else:
                for unit in {charge.limit.dimension.unit for charge in claim.charges}:
                    await self.release(claim, unit, now_ms=now_ms)

    async def read(
        self, tenant: str, charges: Sequence[Charge], *, now_ms: int | None = None
    ) -> tuple[Reading, ...]:
        return self._read(tenant, charges, wall_ms() if now_ms is None else now_ms)

    async def seed(self, tenant: str, charge: Charge, *, now_ms: int | None = None) -> None:
        state = self._state(tenant, charge, wall_ms() if now_ms is None else now_ms)
        assert isinstance(state, Holds), "only a calendar period has a past"
        if not state.is_seeded:
            state.settled += charge.amount
            state.is_seeded = True

    async def close(self) -> None:
        """There is nothing to close."""

    def _read(
        self, tenant: str, charges: Sequence[Charge], now: int, asks: bool = True
    ) -> tuple[Reading, ...]:
        """`asks`: whether the charges are still to be taken, so that there may be a wait."""
        readings = []
        for charge in charges:
            state = self._states.get(_key(tenant, charge)) or _empty(charge)
            state.advance(charge, now)
            wait: int | None = 0
            if asks:
                fits = charge.amount <= charge.limit.value
                wait = state.wait_ms(charge, now) if fits else None
            reset = state.reset_ms(charge, now)
            is_unseeded = state.is_unseeded(charge)
            readings.append(Reading(state.used(charge), reset, wait, is_unseeded, state.held))
        return tuple(readings)

    def _state(self, tenant: str, charge: Charge, now: int) -> Bucket | Holds:
        state = self._states.setdefault(_key(tenant, charge), _empty(charge))
        state.advance(charge, now)
        return state

    def _sweep(self, now: int) -> None:
        """Forgets, from time to time, what no longer limits anybody."""
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            self._states = {k: s for k, s in self._states.items() if not s.is_idle(now)}
            self._claims = {k: t for k, t in self._claims.items() if t[1] > now}


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def period_ms(charge: Charge) -> int:
    return charge.limit.dimension.period_s * 1000


def _empty(charge: Charge) -> Bucket | Holds:
    return Bucket() if charge.limit.dimension.kind == "rate" else Holds()


def _key(tenant: str, charge: Charge) -> str:
    return f"{tenant}:{charge.limit.key}"
