"""Where endpoints get their services and their caller from."""

from typing import Annotated, Any

from fastapi import Depends, Request

from loraplex_platform.admission.plans import PlanService
from loraplex_platform.admission.service import LimitService
from loraplex_platform.audit.service import AuditService
from loraplex_platform.auth.admin_keys import AdminKeyService
from loraplex_platform.auth.dependencies import administrator_with
from loraplex_platform.auth.service import KeyService
from loraplex_platform.control.exports import TenantExportService
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.people.service import PeopleService
from loraplex_platform.tenants.projects import ProjectService
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.budget_service import BudgetService
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.exports import ExportService
from loraplex_platform.usage.invoice_service import InvoiceService
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.reports import Reports
from loraplex_platform.webhooks.service import WebhookService


def _service(name: str) -> Any:
    """A dependency: what the application holds under this name."""

    def get(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(get)


Webhooks = Annotated[WebhookService, _service("webhooks")]
Plans = Annotated[PlanService, _service("plans")]
Limits = Annotated[LimitService, _service("limits")]
Tenants = Annotated[TenantService, _service("tenants")]
TenantExports = Annotated[TenantExportService, _service("tenant_exports")]
Projects = Annotated[ProjectService, _service("projects")]
Keys = Annotated[KeyService, _service("keys")]
AdminKeys = Annotated[AdminKeyService, _service("admin_keys")]
People = Annotated[PeopleService, _service("people")]
Audit = Annotated[AuditService, _service("audit")]
Prices = Annotated[PriceService, _service("prices")]
Credits = Annotated[CreditService, _service("credits")]
Budgets = Annotated[BudgetService, _service("budgets")]
Invoices = Annotated[InvoiceService, _service("invoices")]
Exports = Annotated[ExportService, _service("exports")]
UsageReports = Annotated[Reports, _service("reports")]

Reader = Annotated[Administrator, Depends(administrator_with("read"))]
TenantWriter = Annotated[Administrator, Depends(administrator_with("tenants"))]
ProjectWriter = Annotated[Administrator, Depends(administrator_with("projects"))]
PeopleWriter = Annotated[Administrator, Depends(administrator_with("people"))]
StaffReader = Annotated[Administrator, Depends(administrator_with("read", is_staff=True))]
StaffWriter = Annotated[Administrator, Depends(administrator_with("operators", is_staff=True))]
PlanWriter = Annotated[Administrator, Depends(administrator_with("plans", is_staff=True))]
WebhookWriter = Annotated[Administrator, Depends(administrator_with("webhooks"))]
Exporter = Annotated[Administrator, Depends(administrator_with("export"))]
BillingWriter = Annotated[Administrator, Depends(administrator_with("billing", is_staff=True))]
