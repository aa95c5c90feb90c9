"""Where endpoints get their services and their caller from."""

from typing import Annotated

from fastapi import Depends, Request

from loraplex_platform.admission.plans import PlanService
from loraplex_platform.admission.service import LimitService
from loraplex_platform.audit.service import AuditService
from loraplex_platform.auth.admin_keys import AdminKeyService
from loraplex_platform.auth.dependencies import administrator_with
from loraplex_platform.auth.service import KeyService
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.people.service import PeopleService
from loraplex_platform.tenants.projects import ProjectService
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.webhooks.service import WebhookService


def _tenants(request: Request) -> TenantService:
    service: TenantService = request.app.state.tenants
    return service


def _projects(request: Request) -> ProjectService:
    service: ProjectService = request.app.state.projects
    return service


def _keys(request: Request) -> KeyService:
    service: KeyService = request.app.state.keys
    return service


def _admin_keys(request: Request) -> AdminKeyService:
    service: AdminKeyService = request.app.state.admin_keys
    return service


def _people(request: Request) -> PeopleService:
    service: PeopleService = request.app.state.people
    return service


def _audit(request: Request) -> AuditService:
    service: AuditService = request.app.state.audit
    return service


def _plans(request: Request) -> PlanService:
    service: PlanService = request.app.state.plans
    return service


def _limits(request: Request) -> LimitService:
    service: LimitService = request.app.state.limits
    return service


def _webhooks(request: Request) -> WebhookService:
    service: WebhookService = request.app.state.webhooks
    return service


Webhooks = Annotated[WebhookService, Depends(_webhooks)]
Plans = Annotated[PlanService, Depends(_plans)]
Limits = Annotated[LimitService, Depends(_limits)]
Tenants = Annotated[TenantService, Depends(_tenants)]
Projects = Annotated[ProjectService, Depends(_projects)]
Keys = Annotated[KeyService, Depends(_keys)]
AdminKeys = Annotated[AdminKeyService, Depends(_admin_keys)]
People = Annotated[PeopleService, Depends(_people)]
Audit = Annotated[AuditService, Depends(_audit)]

Reader = Annotated[Administrator, Depends(administrator_with("read"))]
TenantWriter = Annotated[Administrator, Depends(administrator_with("tenants"))]
ProjectWriter = Annotated[Administrator, Depends(administrator_with("projects"))]
PeopleWriter = Annotated[Administrator, Depends(administrator_with("people"))]
StaffReader = Annotated[Administrator, Depends(administrator_with("read", is_staff=True))]
StaffWriter = Annotated[Administrator, Depends(administrator_with("operators", is_staff=True))]
PlanWriter = Annotated[Administrator, Depends(administrator_with("plans", is_staff=True))]
WebhookWriter = Annotated[Administrator, Depends(administrator_with("webhooks"))]
