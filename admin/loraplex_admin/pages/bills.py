"""A tenant's money: this month so far, budgets, credits, invoices."""

import re
from datetime import timedelta

from starlette.responses import Response

from loraplex_admin import words
from loraplex_admin.visit import Change, Columns, Page, Visit
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.usage.billing_models import InvoiceRow
from loraplex_platform.usage.credit_notes import Wish, whole_cents
from loraplex_platform.usage.invoice_service import Month, content_of, status_of
from loraplex_platform.usage.money import PICO_PER_CENT, pico_of
from loraplex_platform.usage.periods import Span

ALL = "/tenants/{tenant_id}/bills"
INVOICE = ALL + "/invoices/{invoice_id}"
SPANS: dict[str, Span] = {"day": "day", "month": "month"}
LIVES = {"": "never", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}
COLUMNS: Columns[InvoiceRow] = {
    "number": lambda row: row.number,
    "total": lambda row: row.total_cents,
    "due": lambda row: row.due_at,
}


async def show(visit: Visit) -> Response:
    services, tenant = visit.services, await _tenant(visit)
    rows = (await services.invoices.list(tenant.id))[::-1]
    now = services.clock.now()
    return visit.render(
        "bills.html",
        tenant=tenant,
        month=f"{now:%Y-%m}",
        last_month=f"{now.replace(day=1) - timedelta(days=1):%Y-%m}",
        grants=await services.credits.grants(tenant.id),
        budgets=await services.budgets.of_tenant(tenant.id),
        rows=visit.sorted(rows, COLUMNS),
        status_of=status_of,
        lives=LIVES,
        pico_per_cent=PICO_PER_CENT,
    )


async def show_balance(visit: Visit) -> Response:
    """A part of the page that comes after it: it takes the month's usage to know."""
    tenant = await _tenant(visit)
    balance = await visit.services.credits.balance(tenant.id)
    return visit.render("balance.html", tenant=tenant, balance=balance)


async def show_draft(visit: Visit) -> Response:
    tenant, month = await _tenant(visit), _month(visit.place("month"))
    draft = await visit.services.invoices.draft(tenant, month)
    return visit.render(
        "invoice.html", tenant=tenant, invoice=draft, state="draft", row=None,
        month=visit.place("month"),
    )  # fmt: skip


async def finalize(visit: Visit) -> Response:
    tenant, month = await _tenant(visit), _month(visit.text("month"))
    if not visit.is_confirmed:
        draft = await visit.services.invoices.draft(tenant, month)
        total = f"{draft['total']} {draft['currency']}"
        changes = [Change(f"Invoice for {visit.text('month')}", "a draft", f"final, {total}")]
        note = "It gets a number and never changes. A wrong one is voided by a credit note."
        return visit.confirm("Make it final?", changes, "Make final", note=note, back=_back(tenant))
    row = await visit.services.invoices.finalize(tenant, month, by=visit.by)
    return visit.goto(f"{_back(tenant)}/invoices/{row.id}", done="created")


async def show_invoice(visit: Visit) -> Response:
    """The document as it was made final; it prints well."""
    tenant, row = await _tenant(visit), await _invoice(visit)
    return visit.render(
        "invoice.html", tenant=tenant, invoice=row.document, state=status_of(row), row=row,
        month=None,
    )  # fmt: skip


async def download(visit: Visit) -> Response:
    row = await _invoice(visit)
    headers = {"content-disposition": f"attachment; filename={row.document['number']}.json"}
    return Response(content_of(row), media_type="application/json", headers=headers)


async def mark(visit: Visit) -> Response:
    """Paid, or void."""
    tenant, row = await _tenant(visit), await _invoice(visit)
    state, back = visit.text("state"), f"{_back(tenant)}/invoices/{row.id}"
    if state not in ("paid", "void"):
        raise InvalidRequest("An invoice is marked paid or void.", param="state")
    verb = "Mark paid" if state == "paid" else "Void"
    if not visit.is_confirmed:
        note = "" if state == "paid" else "A credit note takes everything back."
        changes = [Change(row.document["number"], status_of(row), state)]
        return visit.confirm(f"{verb}?", changes, verb, note=note, back=back)
    invoices = visit.services.invoices
    await (invoices.pay if state == "paid" else invoices.void)(row.id, by=visit.by)
    return visit.goto(back, done="changed")


async def credit(visit: Visit) -> Response:
    """Takes back a line or an amount with a credit note; without an amount all that is left."""
    tenant, row = await _tenant(visit), await _invoice(visit)
    line, reason = visit.text("line"), visit.text("reason")
    if not re.fullmatch(r"[0-9]{0,6}", line) or len(reason) > 200:
        raise InvalidRequest(
            "A line has a number, and a reason up to 200 characters.", param="line"
        )
    cents = whole_cents(_amount(visit)) if visit.text("amount") else None
    if not visit.is_confirmed:
        what = f"line {line}" if line else "the invoice"
        after = "all that is left" if cents is None else words.money(cents * PICO_PER_CENT)
        changes = [Change(f"Credit on {row.document['number']}, {what}", "none", after)]
        note = "A credit note takes it back, and the tax on it. It gets a number and never changes."
        back = f"{_back(tenant)}/invoices/{row.id}"
        return visit.confirm("Credit this?", changes, "Credit", note=note, back=back)
    wish = Wish(int(line) if line else None, cents, reason)
    made = await visit.services.invoices.credit(row.id, wish, by=visit.by)
    return visit.goto(f"{_back(tenant)}/invoices/{made.id}", done="created")


async def set_budget(visit: Visit) -> Response:
    """An empty amount takes the budget away."""
    tenant, span = await _tenant(visit), SPANS.get(visit.text("span"))
    if span is None:
        raise InvalidRequest("A budget is for each day or month.", param="span")
    pico = _amount(visit) if visit.text("amount") else None
    is_hard = visit.text("kind") == "hard"
    budgets = visit.services.budgets
    known = {
        state.budget.span: state.budget
        for state in await budgets.of_tenant(tenant.id)
        if state.budget.level == "tenant"
    }
    if not visit.is_confirmed:
        old = known.get(span)
        before = "none" if old is None else _budget_text(old.pico, is_hard=old.is_hard)
        after = "none" if pico is None else _budget_text(pico, is_hard=is_hard)
        changes = [Change(f"Budget for each {span}", before, after)] if before != after else []
        note = "A hard one refuses requests when it is spent, a soft one only tells."
        return visit.confirm(
            "Change this budget?", changes, "Change", note=note, back=_back(tenant)
        )
    if pico is None:
        await budgets.remove("tenant", tenant.id, span, by=visit.by)
    else:
        await budgets.set(tenant.id, "tenant", tenant.id, span, pico, is_hard=is_hard, by=visit.by)
    return visit.goto(_back(tenant), done="changed")


async def grant(visit: Visit) -> Response:
    tenant, pico, days = await _tenant(visit), _amount(visit), visit.text("expires")
    key = visit.text("key")
    if days not in LIVES:
        raise InvalidRequest("Say when the credit expires.", param="expires")
    if not re.fullmatch(r"[\x21-\x7e]{1,100}", key):
        raise InvalidRequest("A reference has 1 to 100 characters, no spaces.", param="key")
    if not visit.is_confirmed:
        changes = [Change(f"Credit {key}", "none", words.money(pico))]
        return visit.confirm("Grant this credit?", changes, "Grant", back=_back(tenant))
    await visit.services.credits.grant(
        tenant.id,
        key,
        pico,
        funding="paid" if visit.text("funding") == "paid" else "promotion",
        expires_at=visit.services.clock.now() + timedelta(days=int(days)) if days else None,
        by=visit.by,
    )
    return visit.goto(_back(tenant), done="created")


def _budget_text(pico: int, *, is_hard: bool) -> str:
    return f"{words.money(pico)}, {'hard' if is_hard else 'soft'}"


def _amount(visit: Visit) -> int:
    text = visit.text("amount").removeprefix("$")
    try:
        pico = pico_of(text)
    except (ArithmeticError, ValueError) as error:
        raise InvalidRequest("An amount in dollars, please, like 25.00", param="amount") from error
    if not 0 <= pico < 2**63:
        raise InvalidRequest("That is not an amount one can have.", param="amount")
    return pico


def _month(text: str) -> Month:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}", text):
        raise InvalidRequest("A month looks like 2026-11.", param="month")
    return Month.of(int(text[:4]), int(text[5:]))


async def _tenant(visit: Visit) -> Tenant:
    return await visit.services.tenants.find(visit.by, visit.place("tenant_id"))


async def _invoice(visit: Visit) -> InvoiceRow:
    tenant = await _tenant(visit)
    return await visit.services.invoices.get(visit.place("invoice_id"), tenant.id)


def _back(tenant: Tenant) -> str:
    return f"/tenants/{tenant.id}/bills"


PAGES = (
    Page("GET", ALL, show),
    Page("GET", ALL + "/balance", show_balance),
    Page("GET", ALL + "/drafts/{month}", show_draft),
    Page("POST", ALL + "/invoices", finalize, "billing", is_staff=True),
    Page("GET", INVOICE, show_invoice),
    Page("GET", INVOICE + "/document.json", download),
    Page("POST", INVOICE, mark, "billing", is_staff=True),
    Page("POST", INVOICE + "/credit", credit, "billing", is_staff=True),
    Page("POST", ALL + "/budgets", set_budget, "billing", is_staff=True),
    Page("POST", ALL + "/credits", grant, "billing", is_staff=True),
)
