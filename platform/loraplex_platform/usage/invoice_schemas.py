"""What an invoice says, as lists tell it, as a draft and as a final document; amounts are text."""

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel

from loraplex_platform.kit.pagination import Listed
from loraplex_platform.usage.billing_models import InvoiceRow
from loraplex_platform.usage.invoice_service import status_of


class InvoicePeriod(BaseModel):
    start: datetime
    end: datetime
    time_zone: str


class InvoiceOut(Listed):
    """What a list says of an invoice or a credit note."""

    object: Literal["organization.invoice"] = "organization.invoice"
    number: str
    title: str
    status: str
    period: InvoicePeriod
    total: str
    currency: str
    due_at: int
    sha256: str  # of the document

    @classmethod
    def of(cls, row: InvoiceRow) -> Self:
        told = {
            name: row.document[name] for name in ("number", "title", "period", "total", "currency")
        }
        due_at = int(row.due_at.timestamp())
        return cls(id=row.id, status=status_of(row), due_at=due_at, sha256=row.sha256, **told)


class BillTo(BaseModel):
    name: str
    address: str


class InvoiceLine(BaseModel):
    """What one item of one month comes to; of a credit on no line, empty where it says nothing."""

    description: str
    kind: str
    model: str
    adapter: str
    tier: str
    month: str  # its start
    is_correction: bool  # of a month before the invoice's
    quantity: str
    unit: str
    unit_price: str
    exact_amount: str
    amount: str  # rounded to cents


class DocumentLine(InvoiceLine):
    line: int | None = None  # of the invoice: what a credit note takes back


class BurnedCredit(BaseModel):
    grant: str
    amount: str


class Tax(BaseModel):
    percent: str
    amount: str


class Statement(BaseModel):
    """What a draft and a document have in common."""

    title: Literal["Invoice", "Credit note"]
    issuer: str
    issuer_address: str
    tenant: str
    bill_to: BillTo
    period: InvoicePeriod
    currency: str
    subtotal: str
    minimum_fee: str  # up to it
    credits: list[BurnedCredit]
    tax: Tax
    total: str


class DraftOut(Statement):
    lines: list[InvoiceLine]


class InvoiceDocument(Statement):
    """Numbered: it never changes."""

    lines: list[DocumentLine]
    number: str
    of: str | None = None  # the number of the invoice that a credit note is on
    reason: str | None = None  # a credit note's
    finalized_at: datetime
    due_at: datetime
