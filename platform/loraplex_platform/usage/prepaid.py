"""What credits are left; and, for a tenant who may not owe anything, what it may spend this month."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.usage.billing_models import BillingProfile
from loraplex_platform.usage.billing_repository import BillingRepository
from loraplex_platform.usage.charges import Charges
from loraplex_platform.usage.credits import Grant, Spent, burn, turning_points
from loraplex_platform.usage.periods import Period, period_of


@dataclass(frozen=True, slots=True)
class CreditBalance:
    """`settled` after final invoices, `pending` of what is not invoiced, `available` for the rest."""

    settled_pico: int
    pending_pico: int

    @property
    def available_pico(self) -> int:
        return self.settled_pico - self.pending_pico


class Allowance(NamedTuple):
    """What may be spent within a month: what is available, and what was spent in it already."""

    month: Period
    pico: int


async def balance_of(session: AsyncSession, tenant_id: str, now: datetime) -> CreditBalance:
    """Nothing is stored of it: it follows from grants, invoices and usage."""
    billing = BillingRepository(session)
    zone = ZoneInfo((await billing.profile(tenant_id)).zone)
    every = await billing.grants(tenant_id)
    grants = [grant for grant in every if grant.holds_at(now)]
    period = await _not_invoiced(billing, tenant_id, every, now, zone)
    charges = Charges(session, tenant_id, now)
    spent: list[Spent] = await charges.over_time(period, turning_points(every))
    used = burn(every, spent)
    return CreditBalance(
        sum(grant.pico for grant in grants), sum(used.get(grant.id, 0) for grant in grants)
    )


async def allowance_of(
    session: AsyncSession, profile: BillingProfile, now: datetime
) -> Allowance | None:
    """None for a tenant who is billed afterwards."""
    if not profile.is_prepaid:
        return None
    tenant_id = profile.tenant_id
    month = period_of(now, "month", ZoneInfo(profile.zone))
    balance = await balance_of(session, tenant_id, now)
    spent = await Charges(session, tenant_id, now).usage_pico(month)
    return Allowance(month, max(0, balance.available_pico) + spent)


async def _not_invoiced(
    billing: BillingRepository, tenant_id: str, grants: list[Grant], now: datetime, zone: ZoneInfo
) -> Period:
    """From the last final invoice's end to the end of this month; all of it where there is none."""
    month = period_of(now, "month", zone)
    ends = [row.period_end for row in await billing.standing(tenant_id)]
    first = min((grant.effective_at for grant in grants), default=None)
    return Period(max(ends, default=min(first or month.start, month.start)), month.end)
