"""Plans: bundles of standing and limits that tenants share."""

from starlette.responses import Response

from loraplex_admin import words
from loraplex_admin.visit import SHOWN, Change, Page, Visit
from loraplex_engine.messages import TIERS
from loraplex_platform.admission.limits import DIMENSIONS
from loraplex_platform.tenants.models import Plan

ALL = "/settings/plans"
ONE = ALL + "/{plan_id}"
LIMITED = tuple(name for name, dimension in DIMENSIONS.items() if dimension.kind != "stock")
LABELS = {
    "name": "Name",
    "weight": "Weight",
    "max_tier": "Best tier",
    "max_running": "Sequences at a time (soft)",
    "kv_share": "Part of the KV memory (soft)",
}


async def show_all(visit: Visit) -> Response:
    rows = await visit.services.plans.page(**visit.cut)
    return visit.render("plans.html", rows=rows[:SHOWN], has_more=len(rows) > SHOWN)


async def show_new(visit: Visit) -> Response:
    return visit.render("plan.html", plan=None, tiers=TIERS, limited=LIMITED)


async def create(visit: Visit) -> Response:
    values = _values(visit)
    name = str(values.pop("name"))
    plan = await visit.services.plans.create(name, values, by=visit.by)
    return visit.goto(f"{ALL}/{plan.id}", done="created")


async def show(visit: Visit) -> Response:
    plan = await visit.services.plans.find(visit.place("plan_id"))
    return visit.render("plan.html", plan=plan, tiers=TIERS, limited=LIMITED)


async def change(visit: Visit) -> Response:
    plan, values = await visit.services.plans.find(visit.place("plan_id")), _values(visit)
    back = f"{ALL}/{plan.id}"
    if not visit.is_confirmed:
        return visit.confirm(
            f"Change the plan {plan.name}?",
            _changes(plan, values),
            "Change",
            note="Every tenant on it follows within a second, where it has no value of its own.",
            back=back,
        )
    revision = visit.integer("revision")
    await visit.services.plans.change(visit.by, plan.id, values, revision=revision)
    return visit.goto(back, done="changed")


async def remove(visit: Visit) -> Response:
    plan = await visit.services.plans.find(visit.place("plan_id"))
    if not visit.is_confirmed:
        changes = [Change(plan.name, "a plan that tenants can be put on", "removed")]
        return visit.confirm(
            f"Remove the plan {plan.name}?", changes, "Remove", back=f"{ALL}/{plan.id}"
        )
    await visit.services.plans.remove(visit.by, plan.id)
    return visit.goto(ALL, done="removed")


def _values(visit: Visit) -> dict[str, object]:
    return {
        "name": visit.text("name"),
        "weight": visit.decimal("weight", "Weight") or 1.0,
        "max_tier": visit.text("max_tier") or TIERS[0],
        "max_running": visit.integer("max_running") if visit.text("max_running") else None,
        "kv_share": visit.decimal("kv_share", "Part of the KV memory"),
        "limits": {name: visit.integer(name) for name in LIMITED if visit.text(name)},
    }


def _changes(plan: Plan, values: dict[str, object]) -> list[Change]:
    changes = [
        Change(label, getattr(plan, name), values[name])
        for name, label in LABELS.items()
        if getattr(plan, name) != values[name]
    ]
    limits = values["limits"]
    assert isinstance(limits, dict)
    for name in LIMITED:
        before, after = plan.limits.get(name), limits.get(name)
        if before != after:
            shown = ["no limit" if v is None else words.number(v) for v in (before, after)]
            changes.append(Change(words.dimension(name), *shown))
    return changes


PAGES = (
    Page("GET", ALL, show_all, is_staff=True),
    Page("GET", ALL + "/new", show_new, "plans", is_staff=True),
    Page("POST", ALL, create, "plans", is_staff=True),
    Page("GET", ONE, show, is_staff=True),
    Page("POST", ONE, change, "plans", is_staff=True),
    Page("POST", ONE + "/remove", remove, "plans", is_staff=True),
)
