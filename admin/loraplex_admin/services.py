"""What the console may call: the platform's services, and nothing below them."""

from dataclasses import dataclass, fields
from typing import Any, Self

from loraplex_platform.admission.gate import Gate
from loraplex_platform.admission.plans import PlanService
from loraplex_platform.admission.refusals import RefusalService
from loraplex_platform.admission.service import LimitService
from loraplex_platform.audit.service import AuditService
from loraplex_platform.auth.service import KeyService
from loraplex_platform.batches.service import BatchService
from loraplex_platform.catalogue.desk import AdapterDesk
from loraplex_platform.kit.clock import Clock
from loraplex_platform.observability.health import Health
from loraplex_platform.openai.live_requests import LiveRequests
from loraplex_platform.overview.service import OverviewService
from loraplex_platform.people.service import PeopleService
from loraplex_platform.people.sessions import SessionService
from loraplex_platform.people.single_sign_on import SingleSignOn
from loraplex_platform.rest.idempotency import Idempotency
from loraplex_platform.tenants.projects import ProjectService
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.budget_service import BudgetService
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.invoice_service import InvoiceService
from loraplex_platform.usage.requests import RequestLog
from loraplex_platform.webhooks.service import WebhookService


@dataclass(frozen=True, slots=True)
class Services:
    sessions: SessionService
    single_sign_on: SingleSignOn | None
    idempotency: Idempotency
    people: PeopleService
    tenants: TenantService
    projects: ProjectService
    keys: KeyService
    plans: PlanService
    limits: LimitService
    refusals: RefusalService
    gate: Gate
    requests: RequestLog
    live_requests: LiveRequests
    overview: OverviewService
    webhooks: WebhookService
    batches: BatchService
    adapters: AdapterDesk
    budgets: BudgetService
    credits: CreditService
    invoices: InvoiceService
    audit: AuditService
    health: Health
    clock: Clock

    @classmethod
    def of(cls, state: Any) -> Self:
        """Those that the API put into its state under the same names."""
        return cls(**{field.name: getattr(state, field.name) for field in fields(cls)})
