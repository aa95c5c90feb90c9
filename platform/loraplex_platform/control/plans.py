"""`/plans`, and what binds a tenant: limits, overrides, and what they come to."""

from typing import Annotated, Any

from fastapi import Depends, Query, Response

from loraplex_platform.admission.service import Subject
from loraplex_platform.control.limit_schemas import (
    Dimension,
    EffectiveLimitOut,
    EffectiveOut,
    LimitBody,
    LimitsOut,
    NewPlan,
    Overridden,
    OverrideBody,
    PlanOut,
    PlanPatch,
    SettingOut,
    limits_out,
)
from loraplex_platform.control.schemas import Id
from loraplex_platform.control.services import (
    Keys,
    Limits,
    Plans,
    PlanWriter,
    Projects,
    Reader,
    StaffReader,
    Tenants,
)
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.kit.principal import Administrator, Principal
from loraplex_platform.rest.route import Deleted, Once, Pages, Revision, admin_router, tag

router = admin_router()
LIMITS = "/tenants/{tenant_id}/limits"
OVERRIDES = "/tenants/{tenant_id}/overrides"


@router.post("/plans", status_code=201, dependencies=[Once])
async def create_plan(body: NewPlan, by: PlanWriter, plans: Plans, response: Response) -> PlanOut:
    values = body.given
    plan = await plans.create(values.pop("name"), values, by=by)
    tag(response, plan)
    return PlanOut.model_validate(plan)


@router.get("/plans")
async def list_plans(by: StaffReader, plans: Plans, pages: Pages) -> Page[PlanOut]:
    rows = await plans.page(after=pages.after, limit=pages.limit + 1)
    return page_of([PlanOut.model_validate(row) for row in rows], pages.limit)


@router.get("/plans/{plan_id}")
async def get_plan(plan_id: Id, by: StaffReader, plans: Plans, response: Response) -> PlanOut:
    plan = await plans.find(plan_id)
    tag(response, plan)
    return PlanOut.model_validate(plan)


@router.patch("/plans/{plan_id}")
async def change_plan(
    plan_id: Id,
    body: PlanPatch,
    by: PlanWriter,
    plans: Plans,
    revision: Revision,
    response: Response,
) -> PlanOut:
    plan = await plans.change(by, plan_id, body.given, revision=revision)
    tag(response, plan)
    return PlanOut.model_validate(plan)


@router.delete("/plans/{plan_id}")
async def remove_plan(plan_id: Id, by: PlanWriter, plans: Plans) -> Deleted:
    """Only a plan that no tenant is on."""
    await plans.remove(by, plan_id)
    return Deleted(id=plan_id)


async def subject(
    tenant_id: Id,
    by: Reader,
    tenants: Tenants,
    projects: Projects,
    keys: Keys,
    project_id: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_]{1,64}$")] = None,
    key_id: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_]{1,64}$")] = None,
) -> Subject:
    """The tenant as a whole, or one of its projects, or one of its keys."""
    await tenants.find(by, tenant_id)
    if key_id is not None:
        return Subject(tenant_id, "key", (await keys.find_in(by, tenant_id, key_id)).id)
    if project_id is not None:
        return Subject(tenant_id, "project", (await projects.find(by, tenant_id, project_id)).id)
    return Subject(tenant_id, "tenant", tenant_id)


OfSubject = Annotated[Subject, Depends(subject)]


@router.get(LIMITS)
async def list_limits(tenant_id: Id, by: Reader, tenants: Tenants, limits: Limits) -> LimitsOut:
    """Every rule and override of the tenant, its projects and its keys."""
    await tenants.find(by, tenant_id)
    return await _limits(limits, tenant_id)


@router.put(LIMITS + "/{dimension}")
async def set_limit(
    dimension: Dimension, body: LimitBody, by: PlanWriter, of: OfSubject, limits: Limits
) -> LimitsOut:
    await limits.set(of, dimension, body.value, strict=body.strict, by=by)
    return await _limits(limits, of.tenant_id)


@router.delete(LIMITS + "/{dimension}")
async def remove_limit(
    dimension: Dimension, by: PlanWriter, of: OfSubject, limits: Limits
) -> LimitsOut:
    await limits.remove(of, dimension, by=by)
    return await _limits(limits, of.tenant_id)


@router.put(OVERRIDES + "/{dimension}")
async def set_override(
    dimension: Overridden, body: OverrideBody, by: PlanWriter, of: OfSubject, limits: Limits
) -> LimitsOut:
    """Another value until `expires_at`; what was set before comes back by itself."""
    await limits.override(
        of, dimension, body.value, expires_at=body.expires_at, reason=body.reason, by=by
    )
    return await _limits(limits, of.tenant_id)


@router.delete(OVERRIDES + "/{dimension}")
async def end_override(
    dimension: Dimension, by: PlanWriter, of: OfSubject, limits: Limits
) -> LimitsOut:
    await limits.end_override(of, dimension, by=by)
    return await _limits(limits, of.tenant_id)


@router.get("/tenants/{tenant_id}/effective")
async def get_effective(
    tenant_id: Id, by: Reader, tenants: Tenants, keys: Keys, limits: Limits, of: OfSubject
) -> EffectiveOut:
    """What it all comes to for the tenant, a project or a key, and where each value comes from."""
    tenant = await tenants.find(by, tenant_id)
    standing = await tenants.standing(tenant)
    settings: dict[str, Any] = standing._asdict()
    sources = settings.pop("sources")
    principal = await _as_principal(keys, by, of)
    return EffectiveOut(
        settings={
            name: SettingOut(value=value, source=sources[name]) for name, value in settings.items()
        },
        limits=[EffectiveLimitOut.of(each) for each in await limits.effective(principal)],
    )


async def _as_principal(keys: Keys, by: Administrator, of: Subject) -> Principal:
    if of.level == "tenant":
        return Principal(of.tenant_id, "", "")
    if of.level == "project":
        return Principal(of.tenant_id, of.id, "")
    key = await keys.find_in(by, of.tenant_id, of.id)
    return Principal(of.tenant_id, key.project_id, key.id)


async def _limits(limits: Limits, tenant_id: str) -> LimitsOut:
    return limits_out(await limits.of_tenant(tenant_id), await limits.overrides(tenant_id))
