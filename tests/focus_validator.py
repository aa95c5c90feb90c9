"""Our own reading of FOCUS 1.2: what every row and every file must keep."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal

Row = dict[str, str]
NOT_NULL = [
    "BilledCost",
    "BillingAccountId",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargeCategory",
    "ChargeFrequency",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
]
MANDATORY = (
    *NOT_NULL,
    *["BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit"],
)
CONDITIONAL = [
    "BillingAccountType",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "InvoiceId",
    "ListUnitPrice",
    "PricingCategory",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
]
NUMBERS = [
    "BilledCost",
    "ContractedCost",
    "EffectiveCost",
    "ListCost",
    "ConsumedQuantity",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingQuantity",
]
DATES = ["BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"]
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"", "Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"AI and Machine Learning"},
    "ServiceSubcategory": {"Generative AI"},
    "BillingCurrency": {"USD"},
}
NUMBER = re.compile(r"-?\d+\.\d+")
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
PICO = Decimal("1e-12")


def faults_of(header: list[str], rows: list[Row]) -> list[str]:
    """Everything that is wrong with a file; nothing if it conforms."""
    missing = [f"no column {name}" for name in (*MANDATORY, *CONDITIONAL) if name not in header]
    own = [name for name in header if name.startswith("x_")]
    if header[len(header) - len(own) :] != own:
        missing.append("custom columns come last")
    if any(not re.fullmatch(r"(x_)?([A-Z][A-Za-z]*)", name) for name in header):
        missing.append("names are in Pascal case")
    of_rows = [f"row {n}: {fault}" for n, row in enumerate(rows) for fault in _faults(row)]
    return missing + of_rows + list(_faults_across(rows))


def _faults(row: Row) -> Iterator[str]:
    yield from (f"{name} is null" for name in NOT_NULL if not row[name])
    for name, allowed in ALLOWED.items():
        if row[name] not in allowed:
            yield f"{name} is {row[name]!r}"
    yield from (f"{n}: {row[n]}" for n in NUMBERS if row[n] and not NUMBER.fullmatch(row[n]))
    yield from (f"{n}: {row[n]}" for n in DATES if not DATE.fullmatch(row[n]))
    for name in ("SkuPriceDetails", "Tags"):
        if row[name] and any(isinstance(v, dict | list) for v in json.loads(row[name]).values()):
            yield f"{name} is nested"
    yield from _period_faults(row)
    yield from _price_faults(row)


def _period_faults(row: Row) -> Iterator[str]:
    if not row["ChargePeriodStart"] < row["ChargePeriodEnd"]:
        yield "the charge period is empty"
    if not row["BillingPeriodStart"] < row["BillingPeriodEnd"]:
        yield "the billing period is empty"
    is_within = (
        row["BillingPeriodStart"] <= row["ChargePeriodStart"]
        and row["ChargePeriodEnd"] <= row["BillingPeriodEnd"]
    )
    if not is_within and row["ChargeClass"] != "Correction":
        yield "the charge period lies outside of the billing period"


def _price_faults(row: Row) -> Iterator[str]:
    priced = ("ListUnitPrice", "ContractedUnitPrice", "PricingQuantity", "PricingUnit")
    if not row["SkuPriceId"]:
        yield from (f"{n} without SkuPriceId" for n in (*priced, "ConsumedQuantity") if row[n])
    if row["ChargeCategory"] in ("Usage", "Purchase") and not row["ChargeClass"]:
        yield from (f"{n} is null" for n in (*priced, "SkuId", "SkuPriceId") if not row[n])
    if bool(row["PricingQuantity"]) != bool(row["PricingUnit"]):
        yield "PricingUnit is null iff PricingQuantity is"
    if bool(row["ConsumedQuantity"]) != bool(row["ConsumedUnit"]):
        yield "ConsumedUnit is null iff ConsumedQuantity is"
    if row["ChargeCategory"] == "Tax" and row["SkuPriceId"]:
        yield "a tax has no SKU"
    if row["ChargeCategory"] == "Credit":
        costs = {row[name] for name in ("ListCost", "ContractedCost", "BilledCost")}
        if len(costs) > 1 or Decimal(row["BilledCost"]) > 0:
            yield "a credit is one negative amount"
    if row["PricingQuantity"] and row["ChargeClass"] != "Correction":
        for price, cost in (
            ("ListUnitPrice", "ListCost"),
            ("ContractedUnitPrice", "ContractedCost"),
        ):
            product = Decimal(row["PricingQuantity"]) * Decimal(row[price])
            tolerance = PICO if row["PricingUnit"] != "Tokens" else 0
            if abs(product - Decimal(row[cost])) > tolerance:
                yield f"PricingQuantity × {price} is not {cost}"


def _faults_across(rows: list[Row]) -> Iterator[str]:
    prices = defaultdict(set)
    for row in rows:
        if row["SkuPriceId"]:
            prices[row["SkuPriceId"]].add((row["ListUnitPrice"], row["ContractedUnitPrice"]))
    yield from (f"{sku} has several prices" for sku, found in prices.items() if len(found) > 1)
    if len({tuple(row.values()) for row in rows}) < len(rows):
        yield "a row is there twice"
