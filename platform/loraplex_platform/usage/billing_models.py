"""Money: prices, the ledger, credits, budgets, invoices."""

import re
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import SECRET, Audited, Base, RevisedByContent, TenantOwned


class PriceBookRow(TenantOwned, Audited, Base):
    """A published version; never updated."""

    __tablename__ = "price_book"
    __table_args__ = (
        UniqueConstraint("tenant_id", "effective_from"),
        Index(
            "uq_price_book_effective_from",
            "effective_from",
            unique=True,
            sqlite_where=text("tenant_id IS NULL"),
            postgresql_where=text("tenant_id IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(  # type: ignore[assignment]  # None: the list
        ForeignKey("tenant.id")
    )
    effective_from: Mapped[datetime]
    content: Mapped[dict[str, Any]]  # usage.prices.PriceBook.to_json
    created_at: Mapped[datetime]


class LedgerEntry(TenantOwned, Base):
    """One account's part of a transaction; never updated, never removed."""

    __tablename__ = "ledger_entry"
    __table_args__ = (
        Index(
            "ix_ledger_entry_tenant_id_account_occurred_at", "tenant_id", "account", "occurred_at"
        ),
    )

    transaction_id: Mapped[str] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(primary_key=True)  # usage.ledger.Account
    kind: Mapped[str]  # usage.ledger.TransactionKind
    occurred_at: Mapped[datetime]
    posted_at: Mapped[datetime]
    pico: Mapped[int] = mapped_column(BigInteger)  # debits are positive


class CreditGrant(TenantOwned, Audited, Base):
    """Prepaid or given money; usage burns it before it is owed."""

    __tablename__ = "credit_grant"
    __table_args__ = (UniqueConstraint("tenant_id", "key"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str]  # the operator's own, so that a repeated command grants once
    pico: Mapped[int] = mapped_column(BigInteger)
    funding: Mapped[str]  # usage.credits.Funding
    priority: Mapped[int]  # lower burns first
    effective_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]


class BudgetRow(TenantOwned, Audited, RevisedByContent, Base):
    """At most (hard) or about (soft) this much in a calendar period of the tenant's zone."""

    __tablename__ = "budget"
    __table_args__ = (
        UniqueConstraint("level", "subject", "span"),
        Index("ix_budget_tenant_id", "tenant_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    level: Mapped[str]  # tenant, project or key
    subject: Mapped[str]
    span: Mapped[str]  # usage.periods.Span
    pico: Mapped[int] = mapped_column(BigInteger)
    is_hard: Mapped[bool]
    created_at: Mapped[datetime]


class BudgetAlert(TenantOwned, Base):
    """A threshold that was crossed; once for each window."""

    __tablename__ = "budget_alert"
    __table_args__ = (
        Index("ix_budget_alert_tenant_id", "tenant_id"),
        Index("ix_budget_alert_created_at", "created_at"),
    )

    budget_id: Mapped[str] = mapped_column(ForeignKey("budget.id"), primary_key=True)
    window_start: Mapped[datetime] = mapped_column(primary_key=True)
    percent: Mapped[int] = mapped_column(primary_key=True)
    spent_pico: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]

    @property
    def id(self) -> str:
        return f"{self.budget_id}_{int(self.window_start.timestamp())}_{self.percent}"


def place_of(alert_id: str) -> tuple[str, datetime, int]:
    """The budget, window and share that make such an id; another text is taken for a budget's."""
    match = re.fullmatch(r"(.+)_([0-9]{1,10})_([0-9]{1,3})", alert_id)
    if match is None:
        return alert_id, datetime.min.replace(tzinfo=UTC), 0
    return match[1], datetime.fromtimestamp(int(match[2]), UTC), int(match[3])


class BillingProfile(TenantOwned, Audited, RevisedByContent, Base):
    """How a tenant is billed; without one the defaults of the table hold."""

    __tablename__ = "billing_profile"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    zone: Mapped[str] = mapped_column(default="UTC")
    legal_name: Mapped[str] = mapped_column(default="")
    address: Mapped[str] = mapped_column(default="")
    tax_basis_points: Mapped[int] = mapped_column(default=0)  # 1900 is 19 %
    minimum_fee_cents: Mapped[int] = mapped_column(BigInteger, default=0)
    payment_days: Mapped[int] = mapped_column(default=30)
    is_prepaid: Mapped[bool] = mapped_column(default=False)  # used-up credits refuse requests


class InvoiceRow(TenantOwned, Audited, Base):
    """A final document: only its payment and its being voided are told later."""

    __tablename__ = "invoice"
    __table_args__ = (
        Index(
            "uq_invoice_tenant_id_period_start",
            "tenant_id",
            "period_start",
            unique=True,
            sqlite_where=text("voided_at IS NULL AND credits_id IS NULL"),
            postgresql_where=text("voided_at IS NULL AND credits_id IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(unique=True)  # of the issuer, without a gap
    credits_id: Mapped[str | None] = mapped_column(ForeignKey("invoice.id"))  # a credit note's
    period_start: Mapped[datetime]
    period_end: Mapped[datetime]
    total_cents: Mapped[int] = mapped_column(BigInteger)
    document: Mapped[dict[str, Any]] = mapped_column(info=SECRET)  # the audit log has its sha256
    sha256: Mapped[str]  # of the document's canonical JSON
    finalized_at: Mapped[datetime]
    due_at: Mapped[datetime]
    paid_at: Mapped[datetime | None]
    voided_at: Mapped[datetime | None]


class InvoiceLine(TenantOwned, Base):
    """What a final invoice charged, exactly: later drafts charge the difference."""

    __tablename__ = "invoice_line"
    __table_args__ = (Index("ix_invoice_line_tenant_id", "tenant_id", "month"),)

    invoice_id: Mapped[str] = mapped_column(ForeignKey("invoice.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    month: Mapped[datetime]  # start of the month in which it was used
    item: Mapped[str]  # usage.charges.Item as text
    quantity: Mapped[int] = mapped_column(BigInteger)
    pico: Mapped[int] = mapped_column(BigInteger)
    list_pico: Mapped[int] = mapped_column(BigInteger)
    is_void: Mapped[bool] = mapped_column(default=False)


class CreditUse(TenantOwned, Base):
    """What a final invoice took of a grant."""

    __tablename__ = "credit_use"
    __table_args__ = (Index("ix_credit_use_tenant_id", "tenant_id"),)

    invoice_id: Mapped[str] = mapped_column(ForeignKey("invoice.id"), primary_key=True)
    grant_id: Mapped[str] = mapped_column(ForeignKey("credit_grant.id"), primary_key=True)
    pico: Mapped[int] = mapped_column(BigInteger)
    is_void: Mapped[bool] = mapped_column(default=False)


class SpendHold(TenantOwned, Base):
    """Money that a running request may still spend; once released, its outbox row.

    The usage event releases it in its own transaction, with what was used; it goes when the limiter
    has been told, or when it expires.
    """

    __tablename__ = "spend_hold"
    __table_args__ = (
        Index("ix_spend_hold_tenant_id", "tenant_id"),
        Index("ix_spend_hold_expires_at", "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # the request's, as admission knew it
    claim: Mapped[dict[str, Any]]  # as admission wrote it
    expires_at: Mapped[datetime]
    released_at: Mapped[datetime | None]
    used_tokens: Mapped[int | None] = mapped_column(BigInteger)
    used_pico: Mapped[int | None] = mapped_column(BigInteger)
