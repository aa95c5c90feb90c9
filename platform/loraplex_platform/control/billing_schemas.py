"""What goes into the admin API and comes out of it where money is concerned; amounts are text."""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal, Self

from fastapi import Path, Query
from pydantic import BaseModel, Field, StringConstraints

from loraplex_platform.control.schemas import Moment, Output, Text, Tier
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.json_schema import WHOLE, form
from loraplex_platform.usage.billing_models import BillingProfile, BudgetAlert, CreditGrant
from loraplex_platform.usage.budget_service import BudgetState
from loraplex_platform.usage.invoice_service import Month
from loraplex_platform.usage.money import cents_text, text_of
from loraplex_platform.usage.prepaid import CreditBalance
from loraplex_platform.usage.prices import PriceBook, TokenKind

UNITS = r"[0-8]?[0-9]{1,6}"  # in pico-dollars a column holds nine million and a bit
CENTS = r"(\.[0-9]{1,2}0{0,10})?"
Dollars = Annotated[str, StringConstraints(pattern=rf"^{UNITS}(\.[0-9]{{1,12}})?$")]
Share = Annotated[int, Field(ge=0, le=10_000, strict=True), WHOLE]  # in percent
PerMillion = Annotated[  # a token's price is whole pico-dollars
    str, StringConstraints(pattern=rf"^{UNITS}(\.[0-9]{{1,6}}0{{0,6}})?$")
]
Cents = Annotated[str, StringConstraints(pattern=rf"^{UNITS}{CENTS}$")]
PositiveCents = Annotated[
    str,
    StringConstraints(
        pattern=rf"^(([1-8][0-9]{{0,6}}|9[0-9]{{0,5}}){CENTS}|0\.([1-9][0-9]?|0[1-9])0{{0,10}})$"
    ),
]
MonthText = Annotated[str, StringConstraints(pattern=r"^[2-8][0-9]{3}-(0[1-9]|1[0-2])$")]
Zone = Annotated[Text, Field(max_length=64, json_schema_extra=form("time-zone"))]
MonthInPath = Annotated[MonthText, Path(description="YYYY-MM, in the tenant's zone.")]
MonthInQuery = Annotated[MonthText, Query(description="YYYY-MM, in the tenant's zone.")]
Address = Annotated[
    str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x09\x0b-\x1f\x7f]*$")
]
Percent = Annotated[Decimal, Field(ge=0, le=100, max_digits=5, decimal_places=2)]


def month_of(text: str) -> Month:
    year, month = text.split("-")
    return Month.of(int(year), int(month))


class NewPrice(Body):
    """For whatever it names; without a tier it holds at each tier's percentage."""

    kind: TokenKind
    usd_per_million: PerMillion
    base_model: Annotated[Text, Field(min_length=1)] | None = None
    adapter: Annotated[Text, Field(min_length=1)] | None = None  # a version, "base" or "*"
    tier: Tier | None = None


class BookContent(Body):
    """A list says a general price of every kind, and of hosting; a tenant's own need not."""

    prices: Annotated[list[NewPrice], Field(max_length=10_000)]
    tier_percent: dict[Tier, Share] = Field(default_factory=dict)
    hosting_usd_per_gib_hour: Dollars | None = None


class PriceOut(BaseModel):
    kind: str
    usd_per_million: str
    base_model: str | None = None
    adapter: str | None = None
    tier: str | None = None


class BookContentOut(BaseModel):
    prices: list[PriceOut]
    tier_percent: dict[str, int]
    hosting_usd_per_gib_hour: str | None


class BookBody(Body):
    effective_from: Moment
    tenant_id: Annotated[Text, Field(max_length=64)] | None = None  # None: the list
    content: BookContent


class BookOut(Output):
    object: Literal["price_book"] = "price_book"
    tenant_id: str | None
    effective_from: datetime
    content: BookContentOut

    @classmethod
    def of(cls, book: PriceBook) -> Self:
        return cls(
            id=book.id,
            tenant_id=book.tenant_id,
            effective_from=book.effective_from,
            content=BookContentOut.model_validate(book.to_json()),
        )


class ProfileBody(Body):
    zone: Zone = "UTC"
    legal_name: Text = ""
    address: Address = ""
    tax_percent: Percent = Decimal(0)
    minimum_fee: Cents = "0"  # a month
    payment_days: Annotated[int, Field(ge=0, le=3650)] = 30
    is_prepaid: bool = False  # used-up credits refuse requests

    def profile(self, tenant_id: str) -> BillingProfile:
        return BillingProfile(
            tenant_id=tenant_id,
            zone=self.zone,
            legal_name=self.legal_name,
            address=self.address,
            tax_basis_points=int(self.tax_percent * 100),
            minimum_fee_cents=int(Decimal(self.minimum_fee) * 100),
            payment_days=self.payment_days,
            is_prepaid=self.is_prepaid,
        )


class BalanceOut(BaseModel):
    """Credits: after final invoices, of what is not invoiced yet, and what is left."""

    settled: str
    pending: str
    available: str

    @classmethod
    def of(cls, balance: CreditBalance) -> Self:
        return cls(
            settled=text_of(balance.settled_pico),
            pending=text_of(balance.pending_pico),
            available=text_of(balance.available_pico),
        )


class BillingOut(BaseModel):
    object: Literal["billing"] = "billing"
    tenant_id: str
    zone: str
    legal_name: str
    address: str
    tax_percent: str
    minimum_fee: str
    payment_days: int
    is_prepaid: bool
    credits: BalanceOut

    @classmethod
    def of(cls, profile: BillingProfile, balance: CreditBalance) -> Self:
        return cls(
            tenant_id=profile.tenant_id,
            zone=profile.zone,
            legal_name=profile.legal_name,
            address=profile.address,
            tax_percent=f"{Decimal(profile.tax_basis_points) / 100:f}",
            minimum_fee=cents_text(profile.minimum_fee_cents),
            payment_days=profile.payment_days,
            is_prepaid=profile.is_prepaid,
            credits=BalanceOut.of(balance),
        )


class GrantBody(Body):
    key: Annotated[Text, Field(min_length=1)]  # of the caller's choice: one grant for each
    amount: PositiveCents
    funding: Literal["promotion", "paid"] = "promotion"
    priority: Annotated[int, Field(ge=1, le=1000)] = 100  # lower burns first
    expires_at: Moment | None = None


class GrantOut(Output):
    object: Literal["credit_grant"] = "credit_grant"
    tenant_id: str
    key: str
    amount: str
    funding: str
    priority: int
    effective_at: datetime
    expires_at: datetime | None

    @classmethod
    def of(cls, row: CreditGrant) -> Self:
        return cls(
            id=row.id,
            tenant_id=row.tenant_id,
            key=row.key,
            amount=text_of(row.pico),
            funding=row.funding,
            priority=row.priority,
            effective_at=row.effective_at,
            expires_at=row.expires_at,
        )


class BudgetBody(Body):
    amount: Dollars
    is_hard: bool = False  # refuses requests beyond it


class BudgetOut(Output):
    object: Literal["budget"] = "budget"
    level: str
    subject: str
    span: str
    amount: str
    is_hard: bool
    window_start: datetime
    window_end: datetime
    spent: str
    projected: str  # at the window's end, at its pace so far

    @classmethod
    def of(cls, state: BudgetState) -> Self:
        budget = state.budget
        return cls(
            id=budget.id,
            level=budget.level,
            subject=budget.subject,
            span=budget.span,
            amount=text_of(budget.pico),
            is_hard=budget.is_hard,
            window_start=state.window.start,
            window_end=state.window.end,
            spent=text_of(state.spent_pico),
            projected=text_of(state.projected_pico),
        )


class AlertOut(Output):
    object: Literal["budget_alert"] = "budget_alert"
    budget_id: str
    window_start: datetime
    percent: int
    spent: str
    created_at: datetime

    @classmethod
    def of(cls, row: BudgetAlert) -> Self:
        return cls(
            id=row.id,
            budget_id=row.budget_id,
            window_start=row.window_start,
            percent=row.percent,
            spent=text_of(row.spent_pico),
            created_at=row.created_at,
        )


class InvoiceBody(Body):
    month: MonthText


class CreditNoteBody(Body):
    """Without a line: of the whole invoice; without an amount: all that is left."""

    line: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    amount: Dollars | None = None
    reason: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
