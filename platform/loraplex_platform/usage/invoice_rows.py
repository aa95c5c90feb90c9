"""Numbered documents as rows: an invoice, or a credit note on one."""

from datetime import datetime
from typing import Any

from loraplex_platform.kit.ids import new_id
from loraplex_platform.usage.billing_models import InvoiceRow
from loraplex_platform.usage.credit_notes import cents_in
from loraplex_platform.usage.invoice_document import digest_of
from loraplex_platform.usage.periods import Period


def note_of(row: InvoiceRow, number: int, content: dict[str, Any], now: datetime) -> InvoiceRow:
    """A credit note on the invoice."""
    document = row.document | content
    document |= {
        "title": "Credit note",
        "number": f"INV-{number:06}",
        "of": row.document["number"],
        "finalized_at": utc(now),
    }
    period, total = Period(row.period_start, row.period_end), cents_in(document["total"])
    note = row_of(row.tenant_id, number, period, total, document, now, now)
    note.credits_id = row.id
    return note


def row_of(
    tenant_id: str,
    number: int,
    period: Period,
    total_cents: int,
    document: dict[str, Any],
    now: datetime,
    due_at: datetime,
) -> InvoiceRow:
    return InvoiceRow(
        id=new_id("inv"),
        tenant_id=tenant_id,
        number=number,
        period_start=period.start,
        period_end=period.end,
        total_cents=total_cents,
        document=document,
        sha256=digest_of(document),
        finalized_at=now,
        due_at=due_at,
    )


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
