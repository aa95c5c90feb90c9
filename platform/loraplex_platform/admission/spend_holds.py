"""Keeps the durable half of admission: holds on money, and settlements that a crash swallowed."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from loraplex_platform.admission.limits import DIMENSIONS_OF_CLAIMS, Charge, Claim, Limit
from loraplex_platform.admission.store import LimitStore, StoreUnavailable
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.usage.billing_models import SpendHold
from loraplex_platform.usage.holds import HoldRepository
from loraplex_platform.usage.money import nano_of

log = structlog.get_logger(__name__)
DELIVERED_WITHIN = timedelta(seconds=10)  # by the process that served the request, if it lives
EVERY_S = 1.0
AT_ONCE = 500


@dataclass(slots=True)
class SpendHolds:
    """One process's view; any process may deliver what another one left."""

    database: Database
    store: LimitStore
    clock: Clock
    _delivered: set[str] = field(default_factory=set)  # of which the rows can go

    async def take(self, request_id: str, claim: Claim, ttl_s: float) -> None:
        """Durable on return; the event of the request releases it."""
        expires_at = self.clock.now() + timedelta(seconds=ttl_s)
        async with self.database.unit_of_work() as session:
            holds = HoldRepository(session)
            await holds.add(request_id, claim.tenant, content_of(claim), expires_at)

    def delivered(self, request_id: str) -> None:
        """The limiter knows what became of it."""
        self._delivered.add(request_id)

    async def open_of(self, tenant_id: str) -> Sequence[tuple[Claim, float]]:
        """The claims of a tenant's running requests, and how long each still lives, in seconds."""
        now = self.clock.now()
        async with self.database.reading() as session:
            rows = await HoldRepository(session).open_of(tenant_id, now)
        return [
            (claim_of(tenant_id, row.claim), (row.expires_at - now).total_seconds()) for row in rows
        ]

    async def sweep(self) -> int:
        """Deliver what a dead process did not, and forget what is over; returns how many were."""
        now = self.clock.now()
        if self.store.is_degraded:
            return 0
        async with self.database.reading() as session:
            left = await HoldRepository(session).undelivered(now - DELIVERED_WITHIN, now, AT_ONCE)
        for row in left:
            if row.released_at is not None and row.id not in self._delivered:
                await self._settle(row)
        for tenant_id in {row.tenant_id for row in left}:
            await self.store.read(tenant_id, ())  # whatever is still to be told goes along
        if self.store.is_degraded:
            return 0
        gone = {row.id for row in left} | self._delivered
        if gone:
            async with self.database.unit_of_work() as session:
                await HoldRepository(session).remove(gone)
            self._delivered -= gone
        return len(gone)

    async def run(self) -> None:
        """Sweeps until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.flush()

    async def flush(self) -> None:
        """What cannot be written now is written later."""
        try:
            await self.sweep()
        except (SQLAlchemyError, OSError, StoreUnavailable) as error:
            log.warning("holds_not_swept", error=type(error).__name__)

    async def _settle(self, row: SpendHold) -> None:
        assert row.used_tokens is not None, "a released hold says what was used"
        assert row.used_pico is not None, "a released hold says what was used"
        used = {"tokens": row.used_tokens, "spend": nano_of(row.used_pico)}
        if await self.store.settle(claim_of(row.tenant_id, row.claim), used):
            log.info("settled_for_another_process", usage_request_id=row.id)


def content_of(claim: Claim) -> dict[str, Any]:
    """As JSON; a limit's dimension by name."""
    charges = [
        asdict(limit) | {"dimension": limit.dimension.name, "amount": amount}
        for limit, amount in claim.charges
    ]
    return {
        "id": claim.id,
        "charges": charges,
        "taken_at_s": claim.taken_at_s,
        "is_local": claim.is_local,
    }


def claim_of(tenant_id: str, content: dict[str, Any]) -> Claim:
    charges = tuple(
        Charge(Limit(**{**charge, "dimension": DIMENSIONS_OF_CLAIMS[charge["dimension"]]}), amount)
        for charge in ({**c} for c in content["charges"])
        for amount in [charge.pop("amount")]
    )
    return Claim(content["id"], tenant_id, charges, (), content["taken_at_s"], content["is_local"])
