"""What binds a tenant: its limits, overrides for a while, and what they come to."""

from typing import Annotated, Any

from fastapi import Depends, Query, Response

from loraplex_platform.admission.models import LimitOverride, LimitRule
from loraplex_platform.admission.service import Subject
from loraplex_platform.control.limit_schemas import (
    Dimension,
    EffectiveLimitOut,
    EffectiveOut,
    LimitBody,
    Overridden,
    OverrideBody,
    OverrideOut,
    RuleOut,
    SettingOut,
)
from loraplex_platform.control.schemas import Id
from loraplex_platform.control.services import Keys, Limits, PlanWriter, Projects, Reader, Tenants
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.kit.principal import Administrator, Principal
from loraplex_platform.rest.route import Deleted, Pages, Revision, admin_router, tag

router = admin_router()
LIMITS = "/tenants/{tenant_id}/limits"
OVERRIDES = "/tenants/{tenant_id}/overrides"


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
async def list_limits(
    tenant_id: Id, by: Reader, tenants: Tenants, limits: Limits, pages: Pages
) -> Page[RuleOut]:
    """Those of the tenant, its projects and its keys."""
    await tenants.find(by, tenant_id)
    rows = await limits.page(LimitRule, tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([RuleOut.model_validate(row) for row in rows], pages.limit)


@router.get(LIMITS + "/{dimension}")
async def get_limit(
    dimension: Dimension, by: Reader, of: OfSubject, limits: Limits, response: Response
) -> RuleOut:
    row = await limits.find(LimitRule, of, dimension)
    tag(response, row)
    return RuleOut.model_validate(row)


@router.put(LIMITS + "/{dimension}")
async def set_limit(
    dimension: Dimension,
    body: LimitBody,
    by: PlanWriter,
    of: OfSubject,
    limits: Limits,
    revision: Revision,
    response: Response,
) -> RuleOut:
    row = await limits.set(of, dimension, body.value, strict=body.strict, by=by, revision=revision)
    tag(response, row)
    return RuleOut.model_validate(row)


@router.delete(LIMITS + "/{dimension}")
async def remove_limit(
    dimension: Dimension, by: PlanWriter, of: OfSubject, limits: Limits
) -> Deleted:
    row = await limits.find(LimitRule, of, dimension)
    await limits.remove(of, dimension, by=by)
    return Deleted(id=row.id)


@router.get(OVERRIDES)
async def list_overrides(
    tenant_id: Id, by: Reader, tenants: Tenants, limits: Limits, pages: Pages
) -> Page[OverrideOut]:
    """Those of the tenant, its projects and its keys; an expired one stays until it is removed."""
    await tenants.find(by, tenant_id)
    rows = await limits.page(LimitOverride, tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([OverrideOut.model_validate(row) for row in rows], pages.limit)


@router.get(OVERRIDES + "/{dimension}")
async def get_override(
    dimension: Dimension, by: Reader, of: OfSubject, limits: Limits, response: Response
) -> OverrideOut:
    row = await limits.find(LimitOverride, of, dimension)
    tag(response, row)
    return OverrideOut.model_validate(row)


@router.put(OVERRIDES + "/{dimension}")
async def set_override(
    dimension: Overridden,
    body: OverrideBody,
    by: PlanWriter,
    of: OfSubject,
    limits: Limits,
    revision: Revision,
    response: Response,
) -> OverrideOut:
    """Another value until `expires_at`; what was set before comes back by itself."""
    row = await limits.override(
        of,
        dimension,
        body.value,
        expires_at=body.expires_at,
        reason=body.reason,
        by=by,
        revision=revision,
    )
    tag(response, row)
    return OverrideOut.model_validate(row)


@router.delete(OVERRIDES + "/{dimension}")
async def end_override(
    dimension: Dimension, by: PlanWriter, of: OfSubject, limits: Limits
) -> Deleted:
    row = await limits.find(LimitOverride, of, dimension)
    await limits.end_override(of, dimension, by=by)
    return Deleted(id=row.id)


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
