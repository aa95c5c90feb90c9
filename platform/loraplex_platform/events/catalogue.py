"""What tenants' webhooks may be told: every type of event, and what its `data` holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

EventType = Literal[
    "webhook.test",
    "api_key.created",
    "api_key.rotated",
    "api_key.revoked",
    "tenant.suspended",
    "tenant.resumed",
    "tenant.closed",
    "limits.changed",
    "adapter.ready",
    "adapter.refused",
    "adapter.activated",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "budget.threshold_reached",
    "invoice.finalized",
]


@dataclass(frozen=True, slots=True)
class WebhookTest:
    """The webhook's id."""

    id: str


@dataclass(frozen=True, slots=True)
class KeyEvent:
    id: str  # the key's public part
    project_id: str
    name: str


@dataclass(frozen=True, slots=True)
class TenantEvent:
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class LimitsEvent:
    """Whose limits differ: those of a tenant as a whole, of a project, or of a key."""

    level: str
    subject: str
    dimension: str | None  # None: the plan's, any of them


@dataclass(frozen=True, slots=True)
class AdapterEvent:
    """One version of a name, for example `support@2`."""

    id: str
    name: str
    version: int


@dataclass(frozen=True, slots=True)
class RefusedAdapter:
    """An upload that is no adapter of the base model, and what is wrong with it."""

    name: str
    code: str | None
    message: str


@dataclass(frozen=True, slots=True)
class BatchEvent:
    id: str


@dataclass(frozen=True, slots=True)
class BudgetEvent:
    """Money is text: exact dollars."""

    id: str
    level: str
    subject: str
    span: str
    percent: int
    spent: str
    amount: str


@dataclass(frozen=True, slots=True)
class InvoiceEvent:
    id: str
    number: str
    total: str


Payload = (
    WebhookTest
    | KeyEvent
    | TenantEvent
    | LimitsEvent
    | AdapterEvent
    | RefusedAdapter
    | BatchEvent
    | BudgetEvent
    | InvoiceEvent
)
PAYLOADS: Mapping[EventType, type[Payload]] = MappingProxyType(
    {
        "webhook.test": WebhookTest,
        "api_key.created": KeyEvent,
        "api_key.rotated": KeyEvent,
        "api_key.revoked": KeyEvent,
        "tenant.suspended": TenantEvent,
        "tenant.resumed": TenantEvent,
        "tenant.closed": TenantEvent,
        "limits.changed": LimitsEvent,
        "adapter.ready": AdapterEvent,
        "adapter.refused": RefusedAdapter,
        "adapter.activated": AdapterEvent,
        "batch.completed": BatchEvent,
        "batch.failed": BatchEvent,
        "batch.expired": BatchEvent,
        "batch.cancelled": BatchEvent,
        "budget.threshold_reached": BudgetEvent,
        "invoice.finalized": InvoiceEvent,
    }
)
