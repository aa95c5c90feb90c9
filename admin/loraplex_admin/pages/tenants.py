"""Tenants: found, looked at, changed, suspended."""

from collections.abc import Sequence
from datetime import timedelta

from starlette.responses import Response

from loraplex_admin.limit_use import LimitUse, uses_of
from loraplex_admin.visit import SHOWN, Change, Page, Visit
from loraplex_engine.messages import TIERS
from loraplex_platform.admission.limits import DIMENSIONS
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Principal
from loraplex_platform.tenants.models import Plan, Tenant
from loraplex_platform.tenants.repository import TenantFilter
from loraplex_platform.tenants.schemas import NEXT_STATES, TenantState, standing_of

PLANS = 1000
DAY = timedelta(days=1)
SETTINGS = {
    "plan_id": "Plan",
    "weight": "Weight",
    "max_tier": "Best tier",
    "max_running": "Sequences at a time (soft)",
    "kv_share": "Part of the KV memory (soft)",
}


async def show_tenants(visit: Visit) -> Response:
    """A tenant's own people have one only."""
    if visit.by.tenant_id is not None:
        return visit.goto(f"/tenants/{visit.by.tenant_id}")
    wanted = TenantFilter(
        like=visit.wanted("q") or "", state=visit.wanted("state"), plan_id=visit.wanted("plan_id")
    )
    rows = await visit.services.tenants.page(visit.by, wanted=wanted, **visit.cut)
    plans = {plan.id: plan for plan in await visit.services.plans.page(limit=PLANS)}
    standings = {
        row.id: standing_of(row, plans[row.plan_id] if row.plan_id else None) for row in rows
    }
    return visit.render(
        "tenants.html",
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
        wanted=wanted,
        plans=plans,
        states=tuple(NEXT_STATES),
        standings=standings,
    )


async def show_new(visit: Visit) -> Response:
    return visit.render(
        "tenant_new.html", tiers=TIERS, plans=await visit.services.plans.page(limit=PLANS)
    )


async def create(visit: Visit) -> Response:
    values = {name: value for name, value in _settings(visit).items() if value is not None}
    tenant = await visit.services.tenants.create(visit.text("name"), values, by=visit.by)
    return visit.goto(f"/tenants/{tenant.id}", done="created")


async def show(visit: Visit) -> Response:
    services, by, tenant = visit.services, visit.by, await _tenant(visit)
    uses = await uses_of(services, Principal(tenant.id, "", ""))
    plans: Sequence[Plan] = []
    if by.tenant_id is None:
        plans = await services.plans.page(limit=PLANS)
        standing = standing_of(tenant, next((p for p in plans if p.id == tenant.plan_id), None))
    else:
        standing = await services.tenants.standing(tenant)
    projects = await services.projects.page(by, tenant.id, **visit.cut)
    return visit.render(
        "tenant.html",
        tenant=tenant,
        standing=standing,
        settings=SETTINGS,
        tiers=TIERS,
        plans=plans,
        plan=next((plan for plan in plans if plan.id == tenant.plan_id), None),
        uses=uses,
        refusals=await services.refusals.totals(by, DAY, tenant_id=tenant.id, limit=10),
        projects=projects[:SHOWN],
        has_more=len(projects) > SHOWN,
    )


async def show_limits(visit: Visit) -> Response:
    services, tenant = visit.services, await _tenant(visit)
    uses = await uses_of(services, Principal(tenant.id, "", ""))
    return visit.render(
        "limits.html",
        tenant=tenant,
        uses=uses,
        free_dimensions=_without(uses),
        overrides=await services.limits.overrides(tenant.id),
        rules=await services.limits.of_tenant(tenant.id),
    )


async def change_settings(visit: Visit) -> Response:
    """An empty field leaves the value to the plan, or to the platform's default."""
    tenant, values = await _tenant(visit), _settings(visit)
    back = f"/tenants/{tenant.id}"
    if not visit.is_confirmed:
        changes = await _changes(visit, tenant, values)
        return visit.confirm(
            f"Change the standing of {tenant.name}?",
            changes,
            "Change",
            note="The scheduler follows with the next requests, within a second.",
            back=back,
        )
    revision = visit.integer("revision")
    await visit.services.tenants.change(visit.by, tenant.id, values, revision=revision)
    return visit.goto(back, done="changed")


async def _changes(visit: Visit, tenant: Tenant, values: dict[str, object]) -> list[Change]:
    """Plans by their names."""
    plans = {plan.id: plan.name for plan in await visit.services.plans.page(limit=PLANS)}
    changes = []
    for name, label in SETTINGS.items():
        before, after = getattr(tenant, name), values[name]
        if before != after:
            if name == "plan_id":
                before, after = plans.get(before), plans.get(str(after))
            changes.append(Change(label, before, after))
    return changes


async def change_state(visit: Visit) -> Response:
    tenant, back = await _tenant(visit), f"/tenants/{visit.place('tenant_id')}"
    states: dict[str, TenantState] = {"suspended": "suspended", "active": "active"}
    state = states.get(visit.text("state"))
    if state is None:
        raise InvalidRequest("state must be active or suspended", param="state")
    verb = "Suspend" if state == "suspended" else "Resume"
    if not visit.is_confirmed:
        note = (
            "Its keys are refused and its streams end within seconds." if verb == "Suspend" else ""
        )
        changes = [Change("State", tenant.state, state)]
        return visit.confirm(f"{verb} {tenant.name}?", changes, verb, note=note, back=back)
    await visit.services.tenants.move(visit.by, tenant.id, state)
    return visit.goto(back, done="changed")


async def _tenant(visit: Visit) -> Tenant:
    return await visit.services.tenants.find(visit.by, visit.place("tenant_id"))


def _settings(visit: Visit) -> dict[str, object]:
    return {
        "plan_id": visit.text("plan_id") or None,
        "weight": visit.decimal("weight", SETTINGS["weight"]),
        "max_tier": visit.text("max_tier") or None,
        "max_running": visit.integer("max_running") if visit.text("max_running") else None,
        "kv_share": visit.decimal("kv_share", SETTINGS["kv_share"]),
    }


def _without(uses: list[LimitUse]) -> list[str]:
    """Dimensions that nothing limits yet."""
    taken = {use.limit.dimension.name for use in uses}
    return [name for name in DIMENSIONS if name not in taken]


PAGES = (
    Page("GET", "/tenants", show_tenants),
    Page("GET", "/tenants/new", show_new, "tenants", is_staff=True),
    Page("POST", "/tenants", create, "tenants", is_staff=True),
    Page("GET", "/tenants/{tenant_id}", show),
    Page("GET", "/tenants/{tenant_id}/limits", show_limits),
    Page("POST", "/tenants/{tenant_id}/settings", change_settings, "tenants", is_staff=True),
    Page("POST", "/tenants/{tenant_id}/state", change_state, "tenants", is_staff=True),
)
