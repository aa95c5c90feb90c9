"""Invoices: draft → final (numbered, immutable) → paid or void; credits and who is billed how."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import InvoiceEvent
from loraplex_platform.events.outbox import emit
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.usage.billing_models import BillingProfile, InvoiceRow
from loraplex_platform.usage.billing_repository import BillingRepository
from loraplex_platform.usage.charges import Charges, difference
from loraplex_platform.usage.credit_notes import Wish, part_of, whole_of
from loraplex_platform.usage.credits import burn, turning_points
from loraplex_platform.usage.invoice_document import (
    Draft,
    DraftLine,
    body_of,
    canonical,
)
from loraplex_platform.usage.invoice_postings import (
    credited,
    final_postings,
    payment,
    reversal,
)
from loraplex_platform.usage.invoice_rows import note_of, row_of, utc
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import PICO_PER_CENT
from loraplex_platform.usage.periods import Period, month_of

GRACE = timedelta(hours=1)  # for the events of the month's last requests


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in the tenant's zone."""

    year: int
    month: int

    @classmethod
    def of(cls, year: int, month: int) -> "Month":
        """Raises InvalidRequest where there is no such month."""
        if not (2000 <= year <= 9998 and 1 <= month <= 12):
            raise InvalidRequest(f"no such month: {year}-{month}", param="month")
        return cls(year, month)

    def period(self, zone: ZoneInfo) -> Period:
        return month_of(self.year, self.month, zone)


class InvoiceService:
    """Makes drafts from what was booked, and final invoices from drafts."""

    def __init__(self, database: Database, clock: Clock, issuer: str, address: str = "") -> None:
        self._database = database
        self._clock = clock
        self._issuer = issuer
        self._address = "\n".join(line.strip() for line in address.split(";"))

    async def draft(self, tenant: Tenant, month: Month) -> dict[str, Any]:
        """What an invoice would say at this moment."""
        async with self._database.reading() as session:
            draft, profile = await self._draft(session, tenant.id, month)
        return self._head(tenant, profile, "Invoice") | body_of(draft, profile.zone)

    async def finalize(
        self, tenant: Tenant, month: Month, *, by: Administrator = COMMAND_LINE
    ) -> InvoiceRow:
        """Give the draft a number; from then on it does not change."""
        return await self._alone(by, partial(self._finalize, tenant=tenant, month=month))

    async def pay(self, invoice_id: str, *, by: Administrator = COMMAND_LINE) -> InvoiceRow:
        """The money is there, less what credit notes took back; a second time changes nothing.

        Of a credit note on a paid invoice: its money was given back.
        """
        return await self._alone(by, partial(self._pay, invoice_id=invoice_id))

    async def void(self, invoice_id: str, *, by: Administrator = COMMAND_LINE) -> InvoiceRow:
        """A credit note takes everything back: what was used can be invoiced again."""
        return await self._alone(by, partial(self._void, invoice_id=invoice_id))

    async def credit(
        self, invoice_id: str, wish: Wish, *, by: Administrator = COMMAND_LINE
    ) -> InvoiceRow:
        """A credit note takes a part back, of an invoice that stands, paid or not."""
        return await self._alone(by, partial(self._credit, invoice_id=invoice_id, wish=wish))

    async def list(self, tenant_id: str) -> Sequence[InvoiceRow]:
        async with self._database.reading() as session:
            return await BillingRepository(session).invoices(tenant_id)

    async def page(self, tenant_id: str, *, after: str | None, limit: int) -> Sequence[InvoiceRow]:
        """Oldest first."""
        async with self._database.reading() as session:
            return await BillingRepository(session).invoice_page(tenant_id, after, limit)

    async def get(self, invoice_id: str, tenant_id: str | None = None) -> InvoiceRow:
        """Of this tenant, where one is named."""
        async with self._database.reading() as session:
            row = await BillingRepository(session).invoice(invoice_id, tenant_id)
        if row is None:
            raise NotFound(f"there is no invoice {invoice_id!r}", param="invoice_id")
        return row

    async def _draft(
        self, session: AsyncSession, tenant_id: str, month: Month
    ) -> tuple[Draft, BillingProfile]:
        billing = BillingRepository(session)
        profile = await billing.profile(tenant_id)
        period = month.period(ZoneInfo(profile.zone))
        charges = Charges(session, tenant_id, self._clock.now())
        invoiced = await billing.invoiced(tenant_id)
        final = [Period(r.period_start, r.period_end) for r in await billing.standing(tenant_id)]
        periods = [*(each for each in final if each.start < period.start), period]
        lines = [
            DraftLine(part.start, item, amount)
            for part, charged in zip(periods, await charges.of_each(periods), strict=True)
            for item, amount in difference(charged, invoiced.get(part.start, {}))
        ]
        draft = Draft(period, tuple(lines), 0, {}, profile.tax_basis_points)
        fee = max(0, profile.minimum_fee_cents - draft.subtotal_cents)
        return await self._with_credits(billing, charges, draft, fee, tenant_id), profile

    async def _with_credits(
        self, billing: BillingRepository, charges: Charges, draft: Draft, fee: int, tenant_id: str
    ) -> Draft:
        """Whole cents of what the grants pay, and never more than the lines come to."""
        grants = await billing.grants(tenant_id)
        used = burn(grants, await charges.over_time(draft.period, turning_points(grants)))
        burned, left = {}, max(0, draft.subtotal_cents)
        for grant, pico in sorted(used.items()):
            cents = min(left, pico // PICO_PER_CENT)
            left -= cents
            if cents:
                burned[grant] = cents
        return Draft(draft.period, draft.lines, fee, burned, draft.tax_basis_points)

    async def _finalize(self, session: AsyncSession, tenant: Tenant, month: Month) -> InvoiceRow:
        now, billing = self._clock.now(), BillingRepository(session)
        draft, profile = await self._draft(session, tenant.id, month)
        if now < draft.period.end + GRACE:
            raise InvalidRequest(
                "the month is not over, or has been for less than an hour", param="month"
            )
        if any(r.period_start == draft.period.start for r in await billing.standing(tenant.id)):
            raise Conflict("the month has its invoice")
        number = await billing.next_number()
        due_at = now + timedelta(days=profile.payment_days)
        document = self._head(tenant, profile, "Invoice") | body_of(draft, profile.zone)
        document |= {
            "number": f"INV-{number:06}",
            "finalized_at": utc(now),
            "due_at": utc(due_at),
        }
        row = row_of(tenant.id, number, draft.period, draft.total_cents, document, now, due_at)
        await billing.add_invoice(row, draft)
        pico = {grant: cents * PICO_PER_CENT for grant, cents in draft.burned.items()}
        await billing.add_uses(row, pico)
        await LedgerRepository(session).post(final_postings(row, draft), now)
        event = InvoiceEvent(row.id, document["number"], document["total"])
        await emit(session, tenant.id, "invoice.finalized", event, now)
        return row

    async def _pay(self, session: AsyncSession, invoice_id: str) -> InvoiceRow:
        now, billing = self._clock.now(), BillingRepository(session)
        row = await _payable(billing, invoice_id)
        if row.paid_at is None:
            settled = [row, *(n for n in await billing.notes_on(row.id) if n.paid_at is None)]
            for each in settled:
                each.paid_at = now
            await LedgerRepository(session).post([payment(each, now) for each in settled], now)
        return row

    async def _void(self, session: AsyncSession, invoice_id: str) -> InvoiceRow:
        now, billing = self._clock.now(), BillingRepository(session)
        row = await _standing(billing, invoice_id)
        if row.paid_at is not None:
            raise Conflict("the invoice is paid")
        if await billing.notes_on(row.id):
            raise Conflict("the invoice has credit notes: credit what is left of it")
        number = await billing.next_number()
        note = note_of(row, number, whole_of(row.document), now)
        await billing.add_invoice(note, None)
        await billing.void(row, now)
        ledger = LedgerRepository(session)
        await ledger.post(reversal(await ledger.of_invoice(row), row, now), now)
        return note

    async def _credit(self, session: AsyncSession, invoice_id: str, wish: Wish) -> InvoiceRow:
        now, billing = self._clock.now(), BillingRepository(session)
        row = await _standing(billing, invoice_id)
        earlier = [note.document for note in await billing.notes_on(row.id)]
        number = await billing.next_number()
        note = note_of(row, number, part_of(row.document, earlier, wish), now)
        await billing.add_invoice(note, None)
        await LedgerRepository(session).post([credited(note, now)], now)
        return note

    async def _alone(
        self, by: Administrator, work: Callable[[AsyncSession], Awaitable[InvoiceRow]]
    ) -> InvoiceRow:
        """Sees what was done to invoices before, and nobody does anything to one meanwhile."""
        async with changing(self._database, by, self._clock) as session:
            await BillingRepository(session).lock_invoices()
            return await work(session)

    def _head(self, tenant: Tenant, profile: BillingProfile, title: str) -> dict[str, Any]:
        name = profile.legal_name or tenant.name
        return {
            "title": title,
            "issuer": self._issuer,
            "issuer_address": self._address,
            "tenant": tenant.id,
            "bill_to": {"name": name, "address": profile.address},
        }


def status_of(row: InvoiceRow) -> str:
    if row.voided_at is not None:
        return "void"
    return "final" if row.paid_at is None else "paid"


def content_of(row: InvoiceRow) -> bytes:
    """The document's bytes, which its sha256 is of."""
    return canonical(row.document)


async def _found(billing: BillingRepository, invoice_id: str) -> InvoiceRow:
    row = await billing.invoice(invoice_id)
    if row is None:
        raise NotFound(f"there is no invoice {invoice_id!r}", param="invoice_id")
    return row


async def _payable(billing: BillingRepository, invoice_id: str) -> InvoiceRow:
    """An invoice that stands, or a credit note on one that is paid."""
    row = await _found(billing, invoice_id)
    if row.credits_id is None:
        return await _standing(billing, invoice_id)
    if (await _found(billing, row.credits_id)).paid_at is None:
        raise Conflict("the credit note lessens an invoice that is not paid")
    return row


async def _standing(billing: BillingRepository, invoice_id: str) -> InvoiceRow:
    row = await _found(billing, invoice_id)
    if row.voided_at is not None or row.credits_id is not None:
        raise Conflict("the invoice is void, or a credit note")
    return row
