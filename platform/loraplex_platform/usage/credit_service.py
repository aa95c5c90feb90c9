"""Grants of prepaid or given usage, and how tenants are billed."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.exc import IntegrityError

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.billing_models import BillingProfile, CreditGrant
from loraplex_platform.usage.billing_repository import BillingRepository
from loraplex_platform.usage.credits import Funding
from loraplex_platform.usage.ledger import transfer
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import PICO_PER_CENT
from loraplex_platform.usage.periods import BUCKET, floor_to, zone_of
from loraplex_platform.usage.prepaid import CreditBalance, balance_of


class CreditService:
    """Nothing is stored of a balance: it follows from grants, invoices and usage."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def grant(
        self,
        tenant_id: str,
        key: str,
        pico: int,
        *,
        funding: Funding = "promotion",
        priority: int = 100,
        expires_at: datetime | None = None,
        by: Administrator = COMMAND_LINE,
    ) -> CreditGrant:
        """Once for each key of the operator's choice."""
        now = self._clock.now()
        if pico <= 0 or pico % PICO_PER_CENT:
            raise InvalidRequest("a grant is a positive number of whole cents", param="amount")
        if expires_at is not None and expires_at <= now:
            raise InvalidRequest("the grant would have expired already", param="expires_at")
        row = CreditGrant(
            id=new_id("grant"),
            tenant_id=tenant_id,
            key=key,
            pico=pico,
            funding=funding,
            priority=priority,
            effective_at=floor_to(now, BUCKET),  # what is charged is charged by the quarter hour
            expires_at=expires_at,
            created_at=now,
        )
        source = transfer(
            f"grant:{row.id}",
            tenant_id,
            "grant",
            now,
            pico,
            debit="cash" if funding == "paid" else "promotion",
            credit="credit",
        )
        try:
            async with changing(self._database, by, self._clock) as session:
                await BillingRepository(session).add_grant(row)
                await LedgerRepository(session).post([source], now)
        except IntegrityError as error:
            raise Conflict(f"there is a grant {key!r} already", param="key") from error
        return row

    async def grants(self, tenant_id: str) -> Sequence[CreditGrant]:
        """Oldest first."""
        async with self._database.reading() as session:
            return await BillingRepository(session).grant_rows(tenant_id)

    async def grant_page(
        self, tenant_id: str, *, after: str | None, limit: int
    ) -> Sequence[CreditGrant]:
        async with self._database.reading() as session:
            return await BillingRepository(session).grant_page(tenant_id, after, limit)

    async def find(self, tenant_id: str, grant_id: str) -> CreditGrant:
        async with self._database.reading() as session:
            row = await BillingRepository(session).grant_row(tenant_id, grant_id)
        if row is None:
            raise NotFound(f"there is no grant {grant_id!r}", param="grant_id")
        return row

    async def profile(self, tenant_id: str) -> BillingProfile:
        async with self._database.reading() as session:
            return await BillingRepository(session).profile(tenant_id)

    async def balance(self, tenant_id: str) -> CreditBalance:
        async with self._database.reading() as session:
            return await balance_of(session, tenant_id, self._clock.now())

    async def set_profile(
        self,
        profile: BillingProfile,
        *,
        by: Administrator = COMMAND_LINE,
        revision: int | None = None,
    ) -> BillingProfile:
        """Zone, address, tax, minimum fee; a new zone holds from the next invoice on."""
        zone_of(profile.zone, "zone")
        if min(profile.tax_basis_points, profile.minimum_fee_cents, profile.payment_days) < 0:
            raise InvalidRequest("tax, fee and days are not negative")
        async with changing(self._database, by, self._clock) as session:
            await TenantRepository(session).locked(profile.tenant_id)  # one change after the other
            billing = BillingRepository(session)
            known = await billing.profile(profile.tenant_id)
            check_revision(known, revision)
            if known.zone != profile.zone and await billing.standing(profile.tenant_id):
                raise Conflict("the zone of a tenant with final invoices stays as it is")
            await billing.put_profile(profile)
        return profile
