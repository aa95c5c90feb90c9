"""What was asked, what was turned away and why, and the search that leads there."""

import re
from datetime import timedelta
from typing import NamedTuple

from starlette.responses import Response

from loraplex_admin.visit import SHOWN, Page, Visit
from loraplex_admin.words import number
from loraplex_engine.messages import TIERS
from loraplex_platform.kit.errors import NotFound
from loraplex_platform.tenants.repository import TenantFilter
from loraplex_platform.usage.models import UsageEvent
from loraplex_platform.usage.request_repository import REQUESTS, SEARCHED, RequestFilter

DAY = timedelta(days=1)
HOURS = {"1": "last hour", "24": "last day", "168": "last week", "720": "last 30 days"}
MOST = 100  # limits and keys that turned requests away
OUTCOMES = ("stop", "length", "disconnect", "cancelled", "error")


class Stage(NamedTuple):
    """A part of a request's time."""

    label: str
    seconds: float
    why: str


async def show_requests(visit: Visit) -> Response:
    services, by, within = visit.services, visit.by, _within(visit)
    names = ("key_id", "model", "tier", "outcome")
    chosen = {name: visit.wanted(name) for name in names}
    chosen["tenant_id"] = await visit.tenant_wanted()
    wanted = RequestFilter(**chosen, since=services.clock.now() - within)
    rows = await services.requests.page(by, wanted, **visit.cut)
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
    """Served, or turned away, or under way."""
    services, by, request_id = visit.services, visit.by, visit.place("request_id")
    event = await services.requests.find(by, request_id)
    if event is not None:
        names = await services.tenants.names(by, {event.tenant_id})
        name = names[event.tenant_id]
        return visit.render("request.html", event=event, tenant_name=name, stages=_stages(event))
    refusal = await services.refusals.find(by, request_id)
    if refusal is not None:
        totals = await services.refusals.totals(by, DAY, tenant_id=refusal.tenant_id)
        alike = [t for t in totals if (t.key_id, t.limit) == (refusal.key_id, refusal.limit)]
        names = await services.tenants.names(by, {refusal.tenant_id})
        name = names[refusal.tenant_id]
        return visit.render("refusal.html", refusal=refusal, tenant_name=name, alike=alike)
    live = await services.live_requests.seen(by, request_id)
    if live is None:
        raise NotFound(
            "there is no such request: none that was served, is under way, or is among the last "
            "that its key was refused; all that were turned away are counted under «Turned away»"
        )
    names = await services.tenants.names(by, {live["tenant_id"]})
    return visit.render("live_request.html", live=live, tenant_name=names[live["tenant_id"]])


def _stages(event: UsageEvent) -> list[Stage]:
    """Where its time went, in order."""
    if event.queue_s is None or event.ttft_s is None:
        return [Stage("Until it ended without a token", event.total_s, "")]
    reading = f"{number(event.prompt_tokens - event.cached_tokens)} prompt tokens computed"
    return [
        Stage("In the queue", event.queue_s, "others came first, or something was not there yet"),
        Stage("Until its first token", max(0.0, event.ttft_s - event.queue_s), reading),
        Stage(
            "Until its last token",
            max(0.0, event.total_s - event.ttft_s),
            f"{number(event.completion_tokens)} tokens written",
        ),
    ]


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
    """A tenant's name or id, a key's public id, a request's or a batch's id."""
    text, services, by = visit.wanted("q") or "", visit.services, visit.by
    if re.fullmatch(r"(req|batch)_[0-9a-z_]{1,64}", text):
        return visit.goto(f"/{'requests' if text.startswith('req') else 'batches'}/{text}")
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
