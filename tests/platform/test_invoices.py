"""Invoices: the ledger's money to the cent, immutable, numbered without a gap."""

import asyncio
from datetime import timedelta

import pytest
from tests.asked import asking
from tests.usage_stand import (
    BIG,
    LATER,
    NOON,
    acme_of,
    add_adapter_of,
    add_book,
    book,
    facts,
    invoices_of,
    post,
)

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.errors import Conflict, InvalidRequest
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import BillingProfile, InvoiceRow, Tenant
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.billing_repository import BillingRepository
from loraplex_platform.usage.credit_notes import Wish
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.invoice_document import digest_of, html_of
from loraplex_platform.usage.invoice_service import Month, content_of, status_of
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import PICO_PER_CENT

JUNE, JULY = Month(2026, 6), Month(2026, 7)


async def balance(database: Database, tenant: Tenant, account: str) -> int:
    async with database.reading() as session:
        return await LedgerRepository(session).balance(tenant.id, account)


async def test_an_invoice_says_what_was_used_at_which_price(database: Database) -> None:
    acme = await acme_of(database)
    await post(database, [facts(acme.id, **BIG) for _ in range(3)])
    row = await invoices_of(database).finalize(acme, JUNE)
    lines = [(li["description"], li["quantity"], li["amount"]) for li in row.document["lines"]]
    assert lines == [
        ("Output tokens, tiny, tier standard", "3000000", "1.20"),
        ("Input tokens, tiny, tier standard", "3000000", "0.30"),
    ]
    assert (row.document["total"], row.total_cents) == ("1.50", 150)
    assert row.document["number"] == "INV-000001"
    assert digest_of(row.document) == row.sha256
    assert await balance(database, acme, "receivable") == 150 * PICO_PER_CENT


async def test_a_month_has_one_invoice_and_only_once_it_is_over(database: Database) -> None:
    acme = await acme_of(database)
    with pytest.raises(InvalidRequest):
        await invoices_of(database, NOON).finalize(acme, JUNE)
    assert (await invoices_of(database, NOON).draft(acme, JUNE))["total"] == "0.00"
    await invoices_of(database).finalize(acme, JUNE)
    with pytest.raises(Conflict):
        await invoices_of(database).finalize(acme, JUNE)


async def test_late_events_are_corrections_on_the_next_invoice(database: Database) -> None:
    acme = await acme_of(database)
    await post(database, [facts(acme.id, **BIG)])
    june = await invoices_of(database).finalize(acme, JUNE)
    await post(database, [facts(acme.id, **BIG)])
    july = await invoices_of(database).finalize(acme, JULY)
    assert (june.document["total"], july.document["total"]) == ("0.50", "0.50")
    assert [line["is_correction"] for line in july.document["lines"]] == [True, True]
    kept = await invoices_of(database).get(june.id)
    assert content_of(kept) == content_of(june)


async def test_fee_credits_and_tax_have_lines_of_their_own(database: Database) -> None:
    acme = await acme_of(database)
    credits = CreditService(database, ManualClock(NOON - timedelta(days=14)))
    await credits.set_profile(
        BillingProfile(
            tenant_id=acme.id,
            zone="Europe/Berlin",
            legal_name="Acme <GmbH>",
            address="Street 1\nBerlin",
            tax_basis_points=1900,
            minimum_fee_cents=200,
            payment_days=14,
            is_prepaid=False,
        )
    )
    await credits.grant(acme.id, "welcome", 20 * PICO_PER_CENT)
    await post(database, [facts(acme.id, **BIG)])
    row = await invoices_of(database).finalize(acme, JUNE)
    document = row.document
    assert document["subtotal"] == "0.50"
    assert document["minimum_fee"] == "1.50"
    assert [credit["amount"] for credit in document["credits"]] == ["-0.20"]
    assert (document["tax"]["amount"], document["total"]) == ("0.34", "2.14")
    assert await balance(database, acme, "receivable") == 214 * PICO_PER_CENT
    assert await balance(database, acme, "credit") == 0
    page = html_of(document, status_of(row))
    assert "Acme &lt;GmbH&gt;" in page
    assert "Way 7\n12345 Town" in page
    assert row.due_at - row.finalized_at == timedelta(days=14)
    assert "@media print" in page


async def test_paid_and_void(database: Database) -> None:
    acme = await acme_of(database)
    await post(database, [facts(acme.id, **BIG)])
    service = invoices_of(database)
    row = await service.finalize(acme, JUNE)
    note = await service.void(row.id)
    assert (note.document["number"], note.total_cents) == ("INV-000002", -50)
    again = await service.finalize(acme, JUNE)
    assert again.total_cents == 50
    for _ in range(2):
        paid = await service.pay(again.id)
    assert [status_of(r) for r in (await service.get(row.id), paid)] == ["void", "paid"]
    assert await balance(database, acme, "receivable") == 0
    assert await balance(database, acme, "cash") == 50 * PICO_PER_CENT
    with pytest.raises(Conflict):
        await service.void(again.id)


async def taxed_invoice(database: Database) -> tuple[Tenant, InvoiceRow]:
    """Of two lines, 0.40 and 0.10 dollars, and 19 % of tax: 0.60."""
    acme = await acme_of(database)
    credits = CreditService(database, SystemClock())
    profile = await credits.profile(acme.id)
    profile.tax_basis_points = 1900
    await credits.set_profile(profile)
    await post(database, [facts(acme.id, **BIG)])
    return acme, await invoices_of(database).finalize(acme, JUNE)


async def test_a_line_and_amounts_are_credited_until_nothing_is_left(database: Database) -> None:
    acme, row = await taxed_invoice(database)
    service = invoices_of(database)
    line = await service.credit(row.id, Wish(line=2, reason="wrong model"))
    assert (line.document["number"], line.document["of"]) == ("INV-000002", "INV-000001")
    [credited] = line.document["lines"]
    assert (credited["description"], credited["amount"]) == (
        "Input tokens, tiny, tier standard",
        "-0.10",
    )
    some = await service.credit(row.id, Wish(cents=15))
    rest = await service.credit(row.id, Wish())
    totals = [note.document["total"] for note in (line, some, rest)]
    assert totals == ["-0.12", "-0.18", "-0.30"]  # the tax, too, comes to the invoice's
    assert await balance(database, acme, "receivable") == 0
    assert await balance(database, acme, "tax") == 0
    assert "Credit note on INV-000001: wrong model" in html_of(line.document, status_of(line))
    kept = await service.get(row.id)
    assert (kept.sha256, status_of(kept)) == (row.sha256, "final")
    assert (await service.draft(acme, JULY))["total"] == "0.00"  # it stays invoiced


@pytest.mark.parametrize(
    "wish", [Wish(cents=51), Wish(line=2, cents=11), Wish(line=3), Wish(cents=0), Wish(line=1)]
)
async def test_no_more_is_credited_than_is_left(database: Database, wish: Wish) -> None:
    _, row = await taxed_invoice(database)
    service = invoices_of(database)
    await service.credit(row.id, Wish(line=1))
    with pytest.raises(InvalidRequest):
        await service.credit(row.id, wish)


async def test_two_who_credit_at_once_do_not_credit_twice(database: Database) -> None:
    acme, row = await taxed_invoice(database)
    wishes = [invoices_of(database).credit(row.id, Wish(cents=30)) for _ in range(5)]
    answers = await asyncio.gather(*wishes, return_exceptions=True)
    assert sum(isinstance(answer, InvoiceRow) for answer in answers) == 1
    assert await balance(database, acme, "receivable") == 24 * PICO_PER_CENT


async def test_a_credited_invoice_is_paid_with_what_is_left_and_may_be_refunded(
    database: Database,
) -> None:
    acme, row = await taxed_invoice(database)
    service = invoices_of(database)
    early = await service.credit(row.id, Wish(cents=10))
    with pytest.raises(Conflict, match="not paid"):
        await service.pay(early.id)
    with pytest.raises(Conflict, match="has credit notes"):
        await service.void(row.id)
    await service.pay(row.id)
    assert status_of(await service.get(early.id)) == "paid"
    assert await balance(database, acme, "cash") == 48 * PICO_PER_CENT
    late = await service.credit(row.id, Wish(line=1))
    assert await balance(database, acme, "receivable") == late.total_cents * PICO_PER_CENT
    for _ in range(2):
        await service.pay(late.id)
    assert await balance(database, acme, "receivable") == 0
    assert await balance(database, acme, "cash") == 0


async def test_hosting_is_on_the_invoice(database: Database) -> None:
    acme = await acme_of(database)
    await add_adapter_of(database, acme.id, num_bytes=2**30, created_at=NOON)
    draft = await invoices_of(database, NOON + timedelta(days=1)).draft(acme, JUNE)
    [line] = draft["lines"]
    assert (line["quantity"], line["unit"], line["amount"]) == ("24.000000", "GiB-hours", "0.05")


async def test_a_draft_asks_as_little_after_many_months_and_prices(database: Database) -> None:
    acme = await acme_of(database)
    service = invoices_of(database)
    await post(database, [facts(acme.id, **BIG)])
    with asking() as at_first:
        await service.draft(acme, JUNE)
    for month in (1, 2, 4, 5, 6):  # March stays open
        await service.finalize(acme, Month(2026, month))
    dear = {"prices": [{"kind": "completion", "usd_per_million": "0.8"}]}
    change = NOON + timedelta(days=30)
    await add_book(database, book(dear, id="own", at=change, tenant_id=acme.id))
    days = (-90, 0, 29, 31)  # in March, late in June, in July at both prices
    started = [NOON + timedelta(days=day) for day in days]
    await post(database, [facts(acme.id, started_at=at, **BIG) for at in started])
    with asking() as later:
        draft = await service.draft(acme, JULY)
    lines = [(line["month"][:7], line["quantity"], line["amount"]) for line in draft["lines"]]
    million = "1000000"
    june = [("2026-06", million, "0.40"), ("2026-06", million, "0.10")]
    july = [("2026-07", million, "0.40"), ("2026-07", million, "0.80")]
    assert sorted(lines) == sorted([*june, *july, ("2026-07", "2000000", "0.20")])
    assert len(later) == len(at_first) <= 10


async def finalize_at_once(database: Database) -> None:
    """Twelve tenants' invoices in parallel have the numbers from 1 to 12."""
    tenants = TenantService(database, SystemClock())
    made = [await tenants.create(f"t{n}") for n in range(12)]
    service = invoices_of(database)
    rows = await asyncio.gather(*(service.finalize(tenant, JUNE) for tenant in made))
    assert sorted(row.number for row in rows) == list(range(1, 13))


async def test_numbers_have_no_gap(database: Database) -> None:
    await finalize_at_once(database)


@pytest.mark.slow
async def test_numbers_have_no_gap_on_postgres(migrated_postgres_url: str) -> None:
    database = Database(migrated_postgres_url, pool_size=12)
    await finalize_at_once(database)
    await database.close()


@pytest.mark.slow
async def test_a_month_that_is_finalized_six_times_at_once_has_one_invoice_on_postgres(
    migrated_postgres_url: str,
) -> None:
    database = Database(migrated_postgres_url, pool_size=6)
    tenant = await TenantService(database, ManualClock(NOON)).create("acme")
    service = invoices_of(database)
    tries = (service.finalize(tenant, JUNE) for _ in range(6))
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert [r.number for r in results if not isinstance(r, BaseException)] == [1]
    assert [str(r) for r in results if isinstance(r, Conflict)] == ["the month has its invoice"] * 5
    await database.close()


@pytest.mark.slow
async def test_an_invoice_that_is_voided_meanwhile_is_not_paid_on_postgres(
    migrated_postgres_url: str,
) -> None:
    database = Database(migrated_postgres_url, pool_size=2)
    tenant = await TenantService(database, ManualClock(NOON)).create("acme")
    service = invoices_of(database)
    made = await service.finalize(tenant, JUNE)
    async with changing(database, COMMAND_LINE, ManualClock(LATER)) as session:
        billing = BillingRepository(session)
        await billing.lock_invoices()
        row = await billing.invoice(made.id)
        assert row is not None
        await billing.void(row, LATER)
        paying = asyncio.create_task(service.pay(made.id))
        await asyncio.sleep(
            0.3
        )  # long enough to read; if it is not, nothing is seen and all is well
    with pytest.raises(Conflict):
        await paying
    await database.close()
