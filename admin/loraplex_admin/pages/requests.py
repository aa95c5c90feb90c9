"""What was asked, what was turned away and why, and the search that leads there."""

from datetime import timedelta

from starlette.responses import Response

from loraplex_admin.visit import Page, Visit
from loraplex_engine.messages import TIERS
from loraplex_platform.kit.errors import NotFound
from loraplex_platform.tenants.repository import TenantFilter
from loraplex_platform.usage.request_repository import REQUESTS, SEARCHED, RequestFilter

SHOWN = 50
HOURS = {"1": "last hour", "24": "last day", "168": "last week", "720": "last 30 days"}
MOST = 100  # limits and keys that turned requests away
OUTCOMES = ("stop", "length", "disconnect", "cancelled", "error")


async def show_requests(visit: Visit) -> Response:
    services, by, within = visit.services, visit.by, _within(visit)
    names = ("key_id", "model", "tier", "outcome")
    chosen = {name: visit.wanted(name) for name in names}
    chosen["tenant_id"] = await visit.tenant_wanted()
    wanted = RequestFilter(**chosen, since=services.clock.now() - within)
    rows = await services.requests.page(
        by, wanted, order=visit.sort, after=visit.wanted("after"), limit=SHOWN + 1
    )
    is_sorted = visit.sort.removeprefix("-") in REQUESTS.columns
    return visit.render(
        "requests.html",
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
        tenants=await services.tenants.names(by, {row.tenant_id for row in rows}),
        chosen=chosen,
        searched=SEARCHED if wanted.is_rare or is_sorted else None,
        hours=_hours(visit),
        spans=HOURS,
        tiers=TIERS,
        outcomes=OUTCOMES,
    )


async def show_request(visit: Visit) -> Response:
    found = await visit.services.requests.find(visit.by, visit.place("request_id"))
    if found is None:
        raise NotFound("there is no such request; those turned away are under «Turned away»")
    names = await visit.services.tenants.names(visit.by, {found.tenant_id})
    return visit.render("request.html", event=found, tenant_name=names[found.tenant_id])


async def show_refusals(visit: Visit) -> Response:
    services, by = visit.services, visit.by
    tenant_id = await visit.tenant_wanted()
    totals = await services.refusals.totals(
        by, _within(visit), tenant_id=tenant_id, limit=MOST, order=visit.sort or "-turned"
    )
    recent = [] if tenant_id is None else await services.refusals.recent(by, tenant_id)
    return visit.render(
        "refusals.html",
        totals=totals,
        most=MOST,
        recent=recent,
        tenant_id=tenant_id,
        tenants=await services.tenants.names(by, {row.tenant_id for row in totals}),
        hours=_hours(visit),
        spans=HOURS,
    )


async def search(visit: Visit) -> Response:
    """A tenant's name or id, a key's public id, a request's id."""
    text, services, by = visit.wanted("q") or "", visit.services, visit.by
    if text.startswith("req_") and await services.requests.find(by, text) is not None:
        return visit.goto(f"/requests/{text}")
    key = await services.keys.look_up(by, text.removeprefix("lpx_").partition("_")[0])
    if key is not None:
        return visit.goto(f"/tenants/{key.tenant_id}/projects/{key.project_id}/keys/{key.id}")
    tenants = (
        await services.tenants.page(by, wanted=TenantFilter(text), limit=SHOWN) if text else []
    )
    if len(tenants) == 1:
        return visit.goto(f"/tenants/{tenants[0].id}")
    return visit.render("search.html", text=text, tenants=tenants)


def _hours(visit: Visit) -> str:
    hours = visit.query.get("hours", "24")
    return hours if hours in HOURS else "24"


def _within(visit: Visit) -> timedelta:
    return timedelta(hours=int(_hours(visit)))


PAGES = (
    Page("GET", "/requests", show_requests),
    Page("GET", "/requests/{request_id}", show_request),
    Page("GET", "/refusals", show_refusals),
    Page("GET", "/search", search),
)
