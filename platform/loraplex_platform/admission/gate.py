"""Admission: check all limits and take from all, or take nothing."""

import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from loraplex_platform.admission.estimator import Estimator
from loraplex_platform.admission.limits import (
    Charge,
    Claim,
    Limit,
    Need,
    Outcome,
    Reading,
    Rejection,
)
from loraplex_platform.admission.patience import Patience
from loraplex_platform.admission.store import LimitStore, StoreUnavailable

FIRST_OUTPUT_TOKENS = 256  # the estimate for a tenant and adapter of which nothing is known
FIRST_HELD_S = 1.0
FITTINGS = 3  # others take what was left meanwhile

# What a limit's subject used since the present calendar period began, from the durable records.
History = Callable[[str, Limit], Awaitable[int]]
# The claims on money of a tenant's running requests, and how long each still lives, in seconds.
OpenHolds = Callable[[str], Awaitable[Sequence[tuple[Claim, float]]]]


class Gate:
    """Takes claims in and settles them; the store decides, in one atomic step."""

    def __init__(
        self,
        store: LimitStore,
        history: History | None = None,
        wall_clock: Callable[[], float] = time.time,
        open_holds: OpenHolds | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._store = store
        self._history = history
        self._open_holds = open_holds
        self._wall_clock = wall_clock
        self.patience = patience or Patience()
        self._output_tokens = Estimator()  # by tenant and adapter
        self._held_s = Estimator()  # by tenant

    @property
    def is_degraded(self) -> bool:
        return self._store.is_degraded

    async def probe(self) -> None:
        """Ask the store for nothing, so that `is_degraded` is true to the moment."""
        await self._store.read("", ())

    async def close(self) -> None:
        await self._store.close()

    def estimate_output(self, tenant: str, adapter: str | None, max_tokens: int) -> int:
        """The tokens to reserve for an answer: what its like took so far, at most `max_tokens`."""
        learned = self._output_tokens.estimate((tenant, adapter))
        likely = FIRST_OUTPUT_TOKENS if learned is None else max(1, round(learned))
        return min(max_tokens, likely)

    def observe_output(self, tenant: str, adapter: str | None, tokens: int) -> None:
        self._output_tokens.observe((tenant, adapter), tokens)

    async def admit(
        self, need: Need, limits: Sequence[Limit], *, is_patient: bool = False
    ) -> Claim | Rejection:
        """Every limit has room, and the claim holds it; or nothing was taken.

        A patient one rather comes again than holds less than its estimate beside others.
        """
        assert len({limit.name for limit in limits}) == len(limits), "a limit binds once"
        claim = Claim(need.id, need.tenant, need.charges(limits), taken_at_s=self._wall_clock())
        if not claim.charges:
            return claim
        try:
            outcome = await self._store.reserve(claim, need.ttl_s)
            if self._history is not None and any(r.is_unseeded for r in outcome.readings):
                claim = await self._with_history(claim, outcome)
                outcome = await self._store.reserve(claim, need.ttl_s)
            for _ in range(FITTINGS):
                if outcome.admitted:
                    break
                fitted = _fitted(claim, need, outcome.readings, alone=is_patient)
                if fitted is None:
                    break
                claim, outcome = fitted, await self._store.reserve(fitted, need.ttl_s)
        except StoreUnavailable:
            return _unavailable(claim.charges)
        if outcome.admitted:
            is_local = outcome.is_local
            return dataclasses.replace(claim, readings=outcome.readings, is_local=is_local)
        return self._rejection(need, claim.charges, outcome.readings)

    async def settle(self, claim: Claim, actual: Mapping[str, int]) -> bool:
        """What was used, by unit, takes the place of what was reserved; later calls do nothing."""
        if not claim.charges:
            return True
        self._held_s.observe(claim.tenant, max(0.0, self._wall_clock() - claim.taken_at_s))
        is_told = await self._store.settle(claim, actual)
        self.patience.ended(claim.tenant)
        return is_told

    async def release(self, claim: Claim, unit: str) -> None:
        """The request no longer occupies its leases on this unit; the rest of the claim stands."""
        if claim.leases(unit).charges:
            await self._store.release(claim, unit)

    async def read(self, tenant: str, limits: Sequence[Limit]) -> tuple[Reading, ...]:
        """How full these limits are."""
        return await self._store.read(tenant, [Charge(limit, 0) for limit in limits])

    async def _with_history(self, claim: Claim, outcome: Outcome) -> Claim:
        """The store lost (or never had) the present day or month: told now, it is to be asked again.

        What it admitted meanwhile is given back, under a name that is not used again.
        """
        assert self._history is not None
        for charge, reading in zip(claim.charges, outcome.readings, strict=True):
            if reading.is_unseeded:
                used = await self._history(claim.tenant, charge.limit)
                await self._store.seed(claim.tenant, Charge(charge.limit, used))
        if outcome.admitted:
            reserved = dataclasses.replace(claim, is_local=outcome.is_local)
            await self._store.settle(reserved, claim.unused())
            claim = dataclasses.replace(claim, id=f"{claim.id}.again")
        if any(charge.limit.dimension.unit == "spend" for charge in claim.charges):
            await self._hold_again(claim.tenant)
        return claim

    async def _hold_again(self, tenant: str) -> None:
        """Money that running requests may still spend; taken twice it counts once."""
        for held, ttl_s in () if self._open_holds is None else await self._open_holds(tenant):
            windows = tuple(c for c in held.charges if c.limit.dimension.kind == "window")
            await self._store.reserve(dataclasses.replace(held, charges=windows), ttl_s)

    def _rejection(
        self, need: Need, charges: tuple[Charge, ...], readings: tuple[Reading, ...]
    ) -> Rejection:
        """Names the limit that takes longest to make room: who waits for it gets in."""
        waits = [
            self._wait_s(charge, reading, need)
            for charge, reading in zip(charges, readings, strict=True)
        ]
        worst = max(range(len(waits)), key=lambda i: math.inf if (w := waits[i]) is None else w)
        (limit, amount), wait = charges[worst], waits[worst]
        short = [(c, r) for c, r in zip(charges, readings, strict=True) if r.wait_ms != 0]
        is_held = all(_is_held(charge.limit, reading, need) for charge, reading in short)
        return Rejection(
            limit=limit,
            requested=amount,
            used=readings[worst].used,
            retry_after_s=wait,
            reason="too_large" if wait is None else "held" if is_held else "exceeded",
            charges=charges,
            readings=readings,
        )

    def _wait_s(self, charge: Charge, reading: Reading, need: Need) -> float | None:
        if reading.wait_ms is None:
            return None
        wait_s = reading.wait_ms / 1000
        usual_s = self._held_s.estimate(need.tenant) or FIRST_HELD_S
        if _is_held(charge.limit, reading, need):
            return min(wait_s, max(FIRST_HELD_S, usual_s))
        if charge.limit.dimension.kind != "lease" or wait_s == 0:
            return wait_s
        # A lease ends when its request does, which nobody knows; its expiry is certain but far.
        # The oldest one was taken a time to live before its expiry and runs as long as its like.
        return min(wait_s, max(FIRST_HELD_S, wait_s - need.ttl_s + usual_s))


def _fitted(claim: Claim, need: Need, readings: Sequence[Reading], *, alone: bool) -> Claim | None:
    """The claim with its estimates cut to what windows have left; None where that does not help.

    An estimate must not turn away a request that its budget could pay: only the firm part must fit.
    `alone`: only where nobody else holds a part of the window, so that no two are cut at once.
    """
    charges = []
    for (limit, amount), reading in zip(claim.charges, readings, strict=True):
        if reading.wait_ms != 0:
            room = limit.value - reading.used
            if limit.dimension.kind != "window" or room < max(1, need.firm(limit)):
                return None
            if alone and reading.held:
                return None
            amount = min(amount, room)
        charges.append(Charge(limit, amount))
    return dataclasses.replace(claim, charges=tuple(charges))


def _is_held(limit: Limit, reading: Reading, need: Need) -> bool:
    """Whether a window lacks the room only while requests at work hold a part of it."""
    if limit.dimension.kind != "window" or not reading.wait_ms or not reading.held:
        return False
    return limit.value - (reading.used - reading.held) >= max(1, need.firm(limit))


def _unavailable(charges: tuple[Charge, ...]) -> Rejection:
    limit, amount = next((c for c in charges if c.limit.is_strict), charges[0])
    return Rejection(limit, amount, 0, 1.0, "store_unavailable", charges)
