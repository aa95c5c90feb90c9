"""Statements on billing profiles, credits and invoices."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import Select, func
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.paging import page_after
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.usage.billing_models import (
    BillingProfile,
    CreditGrant,
    CreditUse,
    InvoiceLine,
    InvoiceRow,
)
from loraplex_platform.usage.charges import Amount, Item
from loraplex_platform.usage.credits import Grant
from loraplex_platform.usage.invoice_document import Draft
from loraplex_platform.usage.periods import Period


class BillingRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def profile(self, tenant_id: str) -> BillingProfile:
        """The tenant's, or a new one with the defaults, which is not stored."""
        statement = across_tenants(BillingProfile).where(BillingProfile.tenant_id == tenant_id)
        found = await self._session.scalar(statement)
        return found or BillingProfile(
            tenant_id=tenant_id,
            zone="UTC",
            legal_name="",
            address="",
            tax_basis_points=0,
            minimum_fee_cents=0,
            payment_days=30,
            is_prepaid=False,
        )

    async def put_profile(self, profile: BillingProfile) -> None:
        await self._session.merge(profile)
        await self._session.flush()

    async def add_grant(self, grant: CreditGrant) -> None:
        self._session.add(grant)
        await self._session.flush()

    async def grants(self, tenant_id: str) -> list[Grant]:
        """With what final invoices have left of each."""
        used = across_tenants(CreditUse).where(
            CreditUse.tenant_id == tenant_id, CreditUse.is_void.is_(False)
        )
        sums = used.with_only_columns(CreditUse.grant_id, func.sum(CreditUse.pico).label("pico"))
        taken = sums.group_by(CreditUse.grant_id).subquery()
        given = _granted(tenant_id).outerjoin(taken, taken.c.grant_id == CreditGrant.id)
        rows = await self._session.execute(given.add_columns(taken.c.pico))
        return [
            Grant(
                row.id,
                row.pico - int(pico or 0),
                row.priority,
                row.effective_at,
                row.expires_at,
                row.created_at,
            )
            for row, pico in rows
        ]

    async def grant_rows(self, tenant_id: str) -> Sequence[CreditGrant]:
        """As they were given, oldest first."""
        return (await self._session.scalars(_granted(tenant_id))).all()

    async def grant_page(
        self, tenant_id: str, after: str | None, limit: int
    ) -> Sequence[CreditGrant]:
        own = across_tenants(CreditGrant).where(CreditGrant.tenant_id == tenant_id)
        return (await self._session.scalars(page_after(own, CreditGrant.id, after, limit))).all()

    async def grant_row(self, tenant_id: str, grant_id: str) -> CreditGrant | None:
        own = across_tenants(CreditGrant).where(CreditGrant.tenant_id == tenant_id)
        return await self._session.scalar(own.where(CreditGrant.id == grant_id))

    async def invoice(self, invoice_id: str, tenant_id: str | None = None) -> InvoiceRow | None:
        statement = across_tenants(InvoiceRow).where(InvoiceRow.id == invoice_id)
        if tenant_id is not None:
            statement = statement.where(InvoiceRow.tenant_id == tenant_id)
        return await self._session.scalar(statement)

    async def invoices(self, tenant_id: str) -> Sequence[InvoiceRow]:
        statement = across_tenants(InvoiceRow).where(InvoiceRow.tenant_id == tenant_id)
        return (await self._session.scalars(statement.order_by(InvoiceRow.number))).all()

    async def invoice_page(
        self, tenant_id: str, after: str | None, limit: int
    ) -> Sequence[InvoiceRow]:
        own = across_tenants(InvoiceRow).where(InvoiceRow.tenant_id == tenant_id)
        return (await self._session.scalars(page_after(own, InvoiceRow.id, after, limit))).all()

    async def standing(self, tenant_id: str) -> Sequence[InvoiceRow]:
        """Invoices that are neither void nor credit notes, oldest period first."""
        statement = across_tenants(InvoiceRow).where(
            InvoiceRow.tenant_id == tenant_id,
            InvoiceRow.voided_at.is_(None),
            InvoiceRow.credits_id.is_(None),
        )
        return (await self._session.scalars(statement.order_by(InvoiceRow.period_start))).all()

    async def notes_on(self, invoice_id: str) -> Sequence[InvoiceRow]:
        """An invoice's credit notes, oldest first."""
        statement = across_tenants(InvoiceRow).where(InvoiceRow.credits_id == invoice_id)
        return (await self._session.scalars(statement.order_by(InvoiceRow.number))).all()

    async def notes_in(self, tenant_id: str, period: Period) -> Sequence[InvoiceRow]:
        """Credit notes of that time which leave their invoice standing."""
        void = across_tenants(InvoiceRow).where(InvoiceRow.voided_at.is_not(None))
        statement = across_tenants(InvoiceRow).where(
            InvoiceRow.tenant_id == tenant_id,
            InvoiceRow.finalized_at >= period.start,
            InvoiceRow.finalized_at < period.end,
            InvoiceRow.credits_id.is_not(None),
            InvoiceRow.credits_id.not_in(void.with_only_columns(InvoiceRow.id)),
        )
        return (await self._session.scalars(statement.order_by(InvoiceRow.number))).all()

    async def lock_invoices(self) -> None:
        """Who makes, pays or voids one waits until this transaction ends."""
        if self._session.get_bind().dialect.name == "postgresql":  # SQLite has one writer anyway
            lock = func.pg_advisory_xact_lock(func.hashtext("invoices"))
            await self._session.execute(lock.select())

    async def next_number(self) -> int:
        """Nobody else's, where invoices are locked."""
        last = across_tenants(InvoiceRow).with_only_columns(func.max(InvoiceRow.number))
        return (await self._session.scalar(last) or 0) + 1

    async def add_invoice(self, row: InvoiceRow, draft: Draft | None) -> None:
        """With its lines and what it takes of the grants; a credit note has neither."""
        self._session.add(row)
        await self._session.flush()
        if draft is None:
            return
        self._session.add_all(
            InvoiceLine(
                tenant_id=row.tenant_id,
                invoice_id=row.id,
                position=position,
                month=line.month,
                item=line.item.text,
                quantity=line.amount.quantity,
                pico=line.amount.pico,
                list_pico=line.amount.list_pico,
                is_void=False,
            )
            for position, line in enumerate(draft.lines)
        )
        await self._session.flush()

    async def add_uses(self, row: InvoiceRow, pico_by_grant: dict[str, int]) -> None:
        self._session.add_all(
            CreditUse(
                tenant_id=row.tenant_id,
                invoice_id=row.id,
                grant_id=grant,
                pico=pico,
                is_void=False,
            )
            for grant, pico in pico_by_grant.items()
        )
        await self._session.flush()

    async def lines(self, invoice_id: str) -> Sequence[InvoiceLine]:
        statement = across_tenants(InvoiceLine).where(InvoiceLine.invoice_id == invoice_id)
        return (await self._session.scalars(statement.order_by(InvoiceLine.position))).all()

    async def uses(self, invoice_id: str) -> Sequence[CreditUse]:
        statement = across_tenants(CreditUse).where(CreditUse.invoice_id == invoice_id)
        return (await self._session.scalars(statement.order_by(CreditUse.grant_id))).all()

    async def invoiced(self, tenant_id: str) -> dict[datetime, dict[Item, Amount]]:
        """By month of use, from all invoices that stand."""
        statement = across_tenants(InvoiceLine).where(
            InvoiceLine.tenant_id == tenant_id, InvoiceLine.is_void.is_(False)
        )
        found: dict[datetime, dict[Item, Amount]] = {}
        for line in await self._session.scalars(statement):
            of_month = found.setdefault(line.month, {})
            item = Item.parse(line.item)
            amount = Amount(line.quantity, line.pico, line.list_pico)
            of_month[item] = of_month.get(item, Amount()).plus(amount)
        return found

    async def void(self, row: InvoiceRow, now: datetime) -> None:
        row.voided_at = now
        parts: Iterable[InvoiceLine | CreditUse] = [
            *await self.lines(row.id),
            *await self.uses(row.id),
        ]
        for part in parts:
            part.is_void = True
        await self._session.flush()


def _granted(tenant_id: str) -> Select[CreditGrant]:
    rows = across_tenants(CreditGrant).where(CreditGrant.tenant_id == tenant_id)
    return rows.order_by(CreditGrant.created_at, CreditGrant.id)
