"""Cost and usage in the shape of FOCUS 1.2 (FinOps Open Cost and Usage Specification).

One row for each hour, project, key, model, adapter, tier and kind of token; then what an invoice adds:
corrections, credits, tax, fee and rounding. The billed costs of an invoice's rows add up to its total.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from loraplex_platform.usage.charges import Amount, Item
from loraplex_platform.usage.invoice_document import LABELS, description_of
from loraplex_platform.usage.money import text_of
from loraplex_platform.usage.periods import Period

COLUMNS = [
    "AvailabilityZone",
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
]
OWN_COLUMNS = ("x_ApiKeyId", "x_PriorityTier", "x_TokenType")
PROVIDER_COLUMNS = ("HostProviderName", "ServiceProviderName")  # mandatory in 1.3
NUMBERS = frozenset(
    [
        "BilledCost",
        "ConsumedQuantity",
        "ContractedCost",
        "ContractedUnitPrice",
        "EffectiveCost",
        "ListCost",
        "ListUnitPrice",
        "PricingQuantity",
    ]
)
BYTE_SECONDS = 2**30 * 3600  # in a GiB-hour
Row = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Account:
    """What is the same on every row of a file."""

    tenant_id: str
    tenant_name: str
    issuer: str
    billing: Period
    invoice: str | None  # its number, once there is one

    def row(self, category: str, description: str, period: Period, pico: int) -> Row:
        """A row that costs this much and has no quantity."""
        cost = text_of(pico)
        return dict.fromkeys((*COLUMNS, *PROVIDER_COLUMNS, *OWN_COLUMNS)) | {
            "BilledCost": cost,
            "BillingAccountId": self.tenant_id,
            "BillingAccountName": self.tenant_name,
            "BillingAccountType": "Tenant",
            "BillingCurrency": "USD",
            "BillingPeriodStart": utc(self.billing.start),
            "BillingPeriodEnd": utc(self.billing.end),
            "ChargeCategory": category,
            "ChargeDescription": description,
            "ChargeFrequency": "Usage-Based" if category == "Usage" else "One-Time",
            "ChargePeriodStart": utc(period.start),
            "ChargePeriodEnd": utc(period.end),
            "ContractedCost": cost,
            "EffectiveCost": cost,
            "ListCost": cost,
            "InvoiceId": self.invoice,
            "InvoiceIssuerName": self.issuer,
            "ProviderName": self.issuer,
            "PublisherName": self.issuer,
            "HostProviderName": self.issuer,
            "ServiceProviderName": self.issuer,
            "ServiceCategory": "AI and Machine Learning",
            "ServiceName": "LLM Inference",
            "ServiceSubcategory": "Generative AI",
        }


@dataclass(frozen=True, slots=True)
class Place:
    """Where within a tenant something was used."""

    project_id: str
    project_name: str
    key_id: str
    region: str


def usage_row(
    account: Account, item: Item, amount: Amount, period: Period, place: Place | None = None
) -> Row:
    """Quantity × unit price is the cost, exactly (hosting: to the pico-dollar)."""
    is_hosting = item.kind == "hosting"
    meter, unit = LABELS[item.kind], "GiB-Hours" if is_hosting else "Tokens"
    quantity = _quantity(item, amount)
    sku = f"{item.model}/{item.kind}"
    details = {"x_Model": item.model, "x_TokenType": item.kind, "x_Tier": item.tier}
    row = account.row("Usage", description_of(item), period, amount.pico) | {
        "ConsumedQuantity": quantity,
        "ConsumedUnit": unit,
        "ContractedUnitPrice": text_of(item.unit_pico),
        "ListCost": text_of(amount.list_pico),
        "ListUnitPrice": text_of(item.list_unit_pico),
        "PricingCategory": "Standard",
        "PricingQuantity": quantity,
        "PricingUnit": unit,
        "ResourceId": item.adapter,
        "ResourceName": item.model,
        "ResourceType": "Model" if item.adapter == "base" else "LoRA Adapter",
        "SkuId": sku,
        "SkuMeter": meter,
        "SkuPriceDetails": json.dumps(details, sort_keys=True),
        "SkuPriceId": f"{sku}:{item.tier}:{item.unit_pico}:{item.list_unit_pico}",
        "x_PriorityTier": item.tier or None,
        "x_TokenType": item.kind,
    }
    if place is not None:
        row |= {
            "RegionId": place.region,
            "RegionName": place.region,
            "SubAccountId": place.project_id,
            "SubAccountName": place.project_name,
            "SubAccountType": "Project",
            "x_ApiKeyId": place.key_id,
        }
    return row


def correction_row(account: Account, item: Item, amount: Amount, month: Period) -> Row:
    """Usage of a month that has its invoice already."""
    return usage_row(account, item, amount, month) | {"ChargeClass": "Correction"}


def extra_rows(account: Account, extras: Iterable[tuple[str, str, int]]) -> Iterator[Row]:
    """(category, description, pico-USD) of what is neither usage nor hosting."""
    for category, description, pico in extras:
        if pico:
            yield account.row(category, description, account.billing, pico)


def note_rows(
    account: Account, number: str, credited: Period, parts: Iterable[tuple[str, int]]
) -> Iterator[Row]:
    """A credit note on the invoice of that period: (category, pico-USD) of its parts."""
    for category, pico in parts:
        if pico:
            row = account.row(category, f"Credit note {number}", credited, pico)
            yield row | {"ChargeClass": "Correction", "InvoiceId": number}


def columns_of(version: str) -> tuple[str, ...]:
    """Of a file: 1.2, or 1.3 with the columns that name the provider."""
    more = PROVIDER_COLUMNS if version == "1.3" else ()
    return (*COLUMNS, *more, *OWN_COLUMNS)


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _quantity(item: Item, amount: Amount) -> str:
    if item.kind != "hosting":
        return f"{amount.quantity}.0"
    if not item.list_unit_pico:
        return f"{Decimal(amount.quantity) / BYTE_SECONDS:.15f}"
    return f"{Decimal(amount.list_pico) / item.list_unit_pico:.20f}"
