"""Every table, so that `Base.metadata` is whole after importing this module."""

from loraplex_platform.admission.models import LimitRule, RejectionCount, RejectionSamples
from loraplex_platform.auth.models import ApiKey
from loraplex_platform.batches.models import Batch, BatchLine
from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.db.base import Base
from loraplex_platform.files.models import StoredFile
from loraplex_platform.tenants.models import Project, Tenant
from loraplex_platform.usage.billing_models import (
    BillingProfile,
    BudgetAlert,
    BudgetRow,
    CreditGrant,
    CreditUse,
    InvoiceLine,
    InvoiceRow,
    LedgerEntry,
    PriceBookRow,
)
from loraplex_platform.usage.models import LatencyMinute, UsageEvent, UsageMinute, UsageQuarter

__all__ = [
    "Adapter",
    "ApiKey",
    "Base",
    "Batch",
    "BatchLine",
    "BillingProfile",
    "BudgetAlert",
    "BudgetRow",
    "CreditGrant",
    "CreditUse",
    "InvoiceLine",
    "InvoiceRow",
    "LatencyMinute",
    "LedgerEntry",
    "LimitRule",
    "PriceBookRow",
    "Project",
    "RejectionCount",
    "RejectionSamples",
    "StoredFile",
    "Tenant",
    "UsageEvent",
    "UsageMinute",
    "UsageQuarter",
]
