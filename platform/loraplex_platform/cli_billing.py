"""`loraplex billing`: prices, budgets, credits, invoices, exports."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import Progress

from loraplex_platform.command import TenantOption, open_database, run
from loraplex_platform.config import load_settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.billing_models import BillingProfile
from loraplex_platform.usage.books import rebuild as rebuild_books
from loraplex_platform.usage.budget_service import BudgetService
from loraplex_platform.usage.budgets import span_of
from loraplex_platform.usage.credit_notes import Wish, whole_cents
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.exports import FORMATS, KINDS, ExportService, Watcher
from loraplex_platform.usage.invoice_document import canonical, html_of
from loraplex_platform.usage.invoice_service import InvoiceService, Month, status_of
from loraplex_platform.usage.money import pico_of, text_of
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.spending import Spending

billing = typer.Typer(no_args_is_help=True, help="Prices, budgets, credits, invoices, exports.")

MonthArgument = Annotated[str, typer.Argument(help="YYYY-MM, in the tenant's zone.")]
DollarsArgument = Annotated[str, typer.Argument(help="US dollars.")]


@billing.command("prices")
def prices(
    publish: Annotated[Path | None, typer.Option(help="A JSON file with a new book.")] = None,
    effective_from: Annotated[datetime | None, typer.Option(help="With its UTC offset.")] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Whose own prices; the list if absent.")
    ] = None,
) -> None:
    """Show the price books, or publish one ahead of its time."""

    async def work() -> None:
        async with open_database() as database:
            service = PriceService(database, SystemClock())
            if publish is not None:
                if effective_from is None or effective_from.tzinfo is None:
                    raise InvalidRequest("--effective-from is needed, with an offset such as Z")
                owner = None
                if tenant is not None:
                    owner = (await TenantService(database, SystemClock()).get(tenant)).id
                await service.publish(effective_from, json.loads(publish.read_text()), owner)
            for book in await service.list():
                whose = book.tenant_id or "list"
                typer.echo(f"{book.id}  {whose}  from {book.effective_from:%FT%H:%MZ}")
                typer.echo(json.dumps(book.to_json()))

    run(work())


@billing.command("profile")
def profile(
    tenant: TenantOption,
    zone: Annotated[str, typer.Option(help="IANA time zone of months and days.")] = "UTC",
    legal_name: str = "",
    address: str = "",
    tax_percent: Annotated[float, typer.Option(help="For example 19 or 7.7.")] = 0.0,
    minimum_fee: Annotated[float, typer.Option(help="US dollars a month.")] = 0.0,
    payment_days: int = 30,
    prepaid: Annotated[
        bool, typer.Option("--prepaid", help="Refuse requests once the credits are used up.")
    ] = False,
) -> None:
    """Set how a tenant is billed."""

    async def work() -> None:
        async with open_database() as database:
            owner = await TenantService(database, SystemClock()).get(tenant)
            await CreditService(database, SystemClock()).set_profile(
                BillingProfile(
                    tenant_id=owner.id,
                    zone=zone,
                    legal_name=legal_name,
                    address=address,
                    tax_basis_points=round(tax_percent * 100),
                    minimum_fee_cents=round(minimum_fee * 100),
                    payment_days=payment_days,
                    is_prepaid=prepaid,
                )
            )

    run(work())


@billing.command("budget")
def budget(
    tenant: TenantOption,
    amount: Annotated[
        str | None, typer.Argument(help="US dollars; shows budgets if absent.")
    ] = None,
    span: Annotated[str, typer.Option(help="day or month.")] = "month",
    hard: Annotated[bool, typer.Option("--hard", help="Refuse requests beyond it.")] = False,
) -> None:
    """Set a tenant's budget, and show how its budgets stand."""

    async def work() -> None:
        async with open_database() as database:
            service = _budgets(database)
            owner = await TenantService(database, SystemClock()).get(tenant)
            if amount is not None:
                pico = _pico(amount)
                await service.set(owner.id, "tenant", owner.id, span_of(span), pico, is_hard=hard)
            for state in await service.of_tenant(owner.id):
                kind = "hard" if state.budget.is_hard else "soft"
                typer.echo(
                    f"{state.budget.level}  {state.budget.span}  {kind}  "
                    f"{text_of(state.spent_pico)} of {text_of(state.budget.pico)}  "
                    f"(projected {text_of(state.projected_pico)})"
                )

    run(work())


@billing.command("grant")
def grant(
    tenant: TenantOption,
    amount: DollarsArgument,
    key: Annotated[str, typer.Option(help="Of your choice: one grant for each.")],
    paid: Annotated[bool, typer.Option("--paid", help="The tenant paid for it.")] = False,
    priority: Annotated[int, typer.Option(help="Lower burns first.")] = 100,
    expires_at: Annotated[datetime | None, typer.Option(help="With its UTC offset.")] = None,
) -> None:
    """Grant credit."""

    async def work() -> None:
        async with open_database() as database:
            owner = await TenantService(database, SystemClock()).get(tenant)
            service = CreditService(database, SystemClock())
            await service.grant(
                owner.id,
                key,
                _pico(amount),
                funding="paid" if paid else "promotion",
                priority=priority,
                expires_at=expires_at,
            )
            balance = await service.balance(owner.id)
        typer.echo(f"available: {text_of(balance.available_pico)}")

    run(work())


@billing.command("invoice")
def invoice(
    tenant: TenantOption,
    month: MonthArgument,
    final: Annotated[bool, typer.Option("--final", help="Number it; it never changes.")] = False,
    html: Annotated[bool, typer.Option("--html", help="A page to print.")] = False,
) -> None:
    """Show a month's invoice as it would be, or make it final."""

    async def work() -> None:
        async with open_database() as database:
            owner = await TenantService(database, SystemClock()).get(tenant)
            service = _invoices(database)
            if final:
                row = await service.finalize(owner, _month(month))
                document, status = row.document, status_of(row)
                typer.echo(f"{row.id}  {document['number']}", err=True)
            else:
                document, status = await service.draft(owner, _month(month)), "draft"
        typer.echo(html_of(document, status) if html else canonical(document).decode())

    run(work())


@billing.command("invoices")
def invoices(tenant: TenantOption) -> None:
    """List a tenant's invoices and credit notes."""

    async def work() -> None:
        async with open_database() as database:
            owner = await TenantService(database, SystemClock()).get(tenant)
            for row in await _invoices(database).list(owner.id):
                number, total = row.document["number"], row.document["total"]
                typer.echo(
                    f"{row.id}  {number}  {row.document['title']}  {total}  {status_of(row)}"
                )

    run(work())


@billing.command("mark")
def mark(
    invoice_id: str,
    state: Annotated[Literal["paid", "void"], typer.Argument(help="paid or void.")],
) -> None:
    """Mark a final invoice as paid, or take it back with a credit note."""

    async def work() -> None:
        async with open_database() as database:
            service = _invoices(database)
            row = await (service.pay if state == "paid" else service.void)(invoice_id)
        typer.echo(f"{row.id}  {row.document['number']}  {row.document['title']}")

    run(work())


@billing.command("credit")
def credit(
    invoice_id: str,
    line: Annotated[int | None, typer.Option(help="Of the invoice, from 1.")] = None,
    amount: Annotated[
        str | None, typer.Option(help="US dollars before tax; all if absent.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Stands on the credit note.")] = "",
) -> None:
    """Take back a line of an invoice, or an amount, with a credit note."""

    async def work() -> None:
        wish = Wish(line, None if amount is None else whole_cents(_pico(amount)), reason)
        async with open_database() as database:
            row = await _invoices(database).credit(invoice_id, wish)
        typer.echo(f"{row.id}  {row.document['number']}  {row.document['total']}")

    run(work())


@billing.command("export")
def export(
    tenant: TenantOption,
    month: MonthArgument,
    kind: Annotated[str, typer.Option(help=", ".join(KINDS))] = "events",
    format: Annotated[str, typer.Option(help=", ".join(FORMATS))] = "csv",
) -> None:
    """Write a month to a file beside its manifest; prints the path."""

    async def work() -> None:
        settings = load_settings()
        if kind not in KINDS or format not in FORMATS:
            raise InvalidRequest(f"kinds: {', '.join(KINDS)}; formats: {', '.join(FORMATS)}")
        async with open_database() as database:
            owner = await TenantService(database, SystemClock()).get(tenant)
            service = ExportService(
                database,
                SystemClock(),
                settings.home / "exports",
                issuer=settings.invoice_issuer,
                region=settings.region,
            )
            with Progress(transient=True) as bar:
                task = bar.add_task("rows", total=None)
                watcher = Watcher(
                    rows=lambda rows, total: bar.update(task, completed=rows, total=total),
                    say=lambda text: typer.echo(text, err=True),
                )
                written = await service.write(owner, _month(month), kind, format, watcher)
        typer.echo(str(written.path))

    run(work())


@billing.command("rebuild")
def rebuild() -> None:
    """Make the roll-ups anew from the usage events."""

    async def work() -> None:
        async with open_database() as database:
            typer.echo(f"{await rebuild_books(database, SystemClock())} events")

    run(work())


def _month(text: str) -> Month:
    year, _, month = text.partition("-")
    if not (year.isdecimal() and month.isdecimal()):
        raise InvalidRequest(f"not a month: {text!r} (YYYY-MM)", param="month")
    return Month.of(int(year), int(month))


def _pico(amount: str) -> int:
    try:
        return pico_of(amount)
    except (ArithmeticError, ValueError) as error:
        raise InvalidRequest(f"not an amount: {amount!r}", param="amount") from error


def _budgets(database: Database) -> BudgetService:
    prices = PriceService(database, SystemClock())
    return BudgetService(database, SystemClock(), Spending(prices))


def _invoices(database: Database) -> InvoiceService:
    settings = load_settings()
    issuer, address = settings.invoice_issuer, settings.invoice_address
    return InvoiceService(database, SystemClock(), issuer, address)
