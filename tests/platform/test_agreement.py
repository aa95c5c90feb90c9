"""Events times prices, ledger, invoices and FOCUS files come to the same, to the pico-dollar."""

import asyncio
import csv
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.platform_stand import home_like
from tests.usage_stand import (
    LATER,
    NOON,
    add_adapter_of,
    add_book,
    any_facts,
    book,
    invoices_of,
    post,
)

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import BillingProfile, InvoiceLine, InvoiceRow, Tenant
from loraplex_platform.usage.billing_repository import BillingRepository
from loraplex_platform.usage.credit_notes import Wish, cents_in
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.exports import ExportService
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.invoice_service import Month, status_of
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import PICO_PER_CENT, dollars, pico_of
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.rating import cost_pico, sku_of, tokens_of

MONTHS = [Month(2026, month) for month in range(4, 10)]


@hypothesis_settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(any_facts(("a",)), min_size=1, max_size=25),
    st.sampled_from(["UTC", "Asia/Kathmandu", "Pacific/Pago_Pago", "Australia/Lord_Howe"]),
    st.integers(0, 10),
    st.integers(0, 300),
    st.booleans(),
)
def test_events_ledger_and_invoices_agree_to_the_pico_dollar(
    migrated: Path,
    events: list[UsageFacts],
    zone: str,
    num_late: int,
    credit_cents: int,
    is_voided: bool,
) -> None:
    async def story(database: Database) -> None:
        tenant = Tenant(id="a", name="a", state="active", created_at=NOON)
        async with changing(database, COMMAND_LINE, ManualClock()) as session:
            session.add(tenant)
        start = NOON - timedelta(days=60)
        half = {"prices": [{"kind": "completion", "usd_per_million": "0.2"}]}
        change = datetime(2026, 6, 20, 5, 15, tzinfo=UTC)
        await add_book(database, book(half, id="own", at=change, tenant_id="a"))
        await add_adapter_of(database, "a", num_bytes=123_456_789, created_at=start)
        credits = CreditService(database, ManualClock(start))
        await credits.set_profile(profile_in(zone))
        if credit_cents:
            await credits.grant("a", "k", credit_cents * PICO_PER_CENT)
        await post(database, events[num_late:])
        service = invoices_of(database)
        for month in MONTHS:
            row = await service.finalize(tenant, month)
            if month == MONTHS[1] and is_voided:
                await service.void(row.id)
                await service.finalize(tenant, month)
            if month == MONTHS[2]:
                await post(database, events[:num_late])
                if (owed := row.total_cents - cents_in(row.document["tax"]["amount"])) > 1:
                    now = month.period(ZoneInfo(zone)).end + timedelta(days=3)
                    await invoices_of(database, now).credit(row.id, Wish(cents=owed // 2))
        owed = await check_agreement(database, tenant, zone, events)
        files = await focus_of(database, tenant, Path(folder))
        assert sum(files.billed.values()) == dollars(owed)
        await check_focus(database, tenant, files)

    with TemporaryDirectory() as folder:
        database = Database(home_like(migrated.parent, Path(folder)).database)
        asyncio.run(closing(database, story(database)))


class Files(NamedTuple):
    """What the FOCUS files of all months come to."""

    billed: dict[str, Decimal]  # by invoice
    used: Decimal  # of these, tokens and hosting that the invoices charge


async def focus_of(database: Database, tenant: Tenant, folder: Path) -> Files:
    clock = ManualClock(LATER)
    exports = ExportService(database, clock, folder / "files", issuer="Example", region="here")
    billed, used = dict[str, Decimal](), Decimal(0)
    for month in MONTHS:
        written = await exports.write(tenant, month, "focus", "csv")
        with written.path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                cost = Decimal(row["BilledCost"])
                billed[row["InvoiceId"]] = billed.get(row["InvoiceId"], Decimal(0)) + cost
                is_late = row["ChargeDescription"] == "Usage that a later invoice charges"
                used += cost if row["ChargeCategory"] == "Usage" or is_late else 0
    return Files(billed, used)


async def check_focus(database: Database, tenant: Tenant, files: Files) -> None:
    """Every invoice that stands is in the files, to the cent; all that it charges, exactly."""
    async with database.reading() as session:
        billing = BillingRepository(session)
        standing = await billing.standing(tenant.id)
        notes = [note for row in standing for note in await billing.notes_on(row.id)]
        lines = across_tenants(InvoiceLine).where(InvoiceLine.is_void.is_(False))
        charged = sum(line.pico for line in await session.scalars(lines))
    totals = {row.document["number"]: Decimal(row.document["total"]) for row in (*standing, *notes)}
    assert {number: total for number, total in files.billed.items() if total} == {
        number: total for number, total in totals.items() if total
    }
    assert files.used == dollars(charged)


def profile_in(zone: str) -> BillingProfile:
    return BillingProfile(
        tenant_id="a",
        zone=zone,
        legal_name="",
        address="",
        tax_basis_points=770,
        minimum_fee_cents=3,
        payment_days=30,
        is_prepaid=False,
    )


async def closing(database: Database, work: object) -> None:
    try:
        await work
    finally:
        await database.close()


async def check_agreement(
    database: Database, tenant: Tenant, zone: str, events: list[UsageFacts]
) -> int:
    """Events times prices, ledger, invoices; returns what is owed."""
    there = ZoneInfo(zone)
    until = Period(MONTHS[0].period(there).start, MONTHS[-1].period(there).end)
    async with database.reading() as session:
        rows = list(await session.scalars(across_tenants(InvoiceRow)))
        standing = across_tenants(InvoiceLine).where(InvoiceLine.is_void.is_(False))
        lines = list(await session.scalars(standing))
        tariffs = await PriceRepository(session).tariffs(tenant.id)
        ledger = LedgerRepository(session)
        earned = -await ledger.balance(tenant.id, "revenue")
        given_back = await ledger.balance(tenant.id, "revenue", kind="credit_note")
        owed = await ledger.balance(tenant.id, "receivable")
        used = -await ledger.balance(tenant.id, "revenue", kind="usage", period=until)
        assert await ledger.unbalanced() == []
    by_hand = [cost_pico(sku_of(e), tokens_of(e), tariffs.at(e.started_at)) for e in events]
    assert sum(by_hand) == used
    fees = sum(pico_of(r.document["minimum_fee"]) for r in rows if status_of(r) == "final")
    fees += sum(pico_of(r.document["minimum_fee"]) for r in rows if r.credits_id is not None)
    assert sum(line.pico for line in lines) == earned - fees + given_back
    assert owed == sum(row.total_cents for row in rows) * PICO_PER_CENT
    assert sorted(row.number for row in rows) == list(range(1, len(rows) + 1))
    return owed
