"""Every table, so that `Base.metadata` is whole after importing this module."""

from loraplex_platform.admission.models import (
    LimitOverride,
    LimitRule,
    RejectionCount,
    RejectionSamples,
)
from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.auth.models import AdminKey, ApiKey, KeyUse
from loraplex_platform.batches.models import Batch, BatchLine
from loraplex_platform.catalogue.models import Adapter, AdapterName
from loraplex_platform.db.base import Base
from loraplex_platform.events.models import Delivery, Webhook
from loraplex_platform.files.models import StoredFile
from loraplex_platform.people.models import LoginSession, OneTimeLink, Person
from loraplex_platform.prefixes.models import Prefix
from loraplex_platform.prompts.models import StoredPrompt
from loraplex_platform.rest.models import IdempotentRequest
from loraplex_platform.tenants.models import Plan, Project, ServiceAccount, Tenant
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
    SpendHold,
)
from loraplex_platform.usage.models import (
    EngineCount,
    LatencyMinute,
    LostWork,
    UsageEvent,
    UsageMinute,
    UsageQuarter,
)

__all__ = [
    "Adapter",
    "AdapterName",
    "AdminKey",
    "ApiKey",
    "AuditEvent",
    "Base",
    "Batch",
    "BatchLine",
    "BillingProfile",
    "BudgetAlert",
    "BudgetRow",
    "CreditGrant",
    "CreditUse",
    "Delivery",
    "EngineCount",
    "IdempotentRequest",
    "InvoiceLine",
    "InvoiceRow",
    "KeyUse",
    "LatencyMinute",
    "LedgerEntry",
    "LimitOverride",
    "LimitRule",
    "LoginSession",
    "LostWork",
    "OneTimeLink",
    "Person",
    "Plan",
    "Prefix",
    "PriceBookRow",
    "Project",
    "RejectionCount",
    "RejectionSamples",
    "ServiceAccount",
    "SpendHold",
    "StoredFile",
    "StoredPrompt",
    "Tenant",
    "UsageEvent",
    "UsageMinute",
    "UsageQuarter",
    "Webhook",
]
