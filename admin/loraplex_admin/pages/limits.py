"""One limit of a tenant, project or key: read, set, raised for a while, lifted."""

from datetime import timedelta

from starlette.responses import Response

from loraplex_admin import words
from loraplex_admin.limit_use import LimitUse, uses_of
from loraplex_admin.visit import Change, Page, Visit
from loraplex_platform.admission.limits import DIMENSIONS, Level
from loraplex_platform.admission.service import Subject
from loraplex_platform.kit.errors import InvalidRequest, NotFound
from loraplex_platform.kit.principal import Principal

LEVELS: dict[str, Level] = {"tenant": "tenant", "project": "project", "key": "key"}
SPANS = {"1": "for an hour", "24": "for a day", "168": "for a week", "0": "from here on"}
PATH = "/tenants/{tenant_id}/limits/{level}/{subject}/{dimension}"


async def show(visit: Visit) -> Response:
    subject, dimension = await _subject(visit), _dimension(visit)
    tenant = await visit.services.tenants.find(visit.by, subject.tenant_id)
    return visit.render(
        "limit.html",
        tenant=tenant,
        subject=subject,
        dimension=dimension,
        use=await _use(visit, subject, dimension),
        spans=SPANS,
    )


async def change(visit: Visit) -> Response:
    """For a while as an override, after which the former value comes back by itself; or for good."""
    subject, dimension = await _subject(visit), _dimension(visit)
    value, span = visit.integer("value"), visit.text("span")
    if span not in SPANS:
        raise InvalidRequest("Say for how long.", param="span")
    path = _path(subject, dimension)
    use = await _use(visit, subject, dimension)
    if not visit.is_confirmed:
        before = "no limit" if use is None else f"{words.number(use.limit.value)} ({use.source})"
        after = f"{words.number(value)} {SPANS[span]}"
        changes = [Change(f"{words.dimension(dimension)} of this {subject.level}", before, after)]
        note = "Running servers follow within a second."
        return visit.confirm("Change this limit?", changes, "Change", note=note, back=path)
    limits, reason = visit.services.limits, visit.text("reason")[:200]
    if span == "0":
        strict = use is not None and use.limit.strict
        await limits.set(subject, dimension, value, strict=strict, by=visit.by)
    else:
        until = visit.services.clock.now() + timedelta(hours=int(span))
        await limits.override(
            subject, dimension, value, expires_at=until, reason=reason, by=visit.by
        )
    return visit.goto(path, done="changed")


async def lift(visit: Visit) -> Response:
    """Ends an override, or takes the rule away."""
    subject, dimension = await _subject(visit), _dimension(visit)
    use = await _use(visit, subject, dimension)
    path = _path(subject, dimension)
    if use is None or use.source == "plan":
        raise InvalidRequest("There is nothing to lift: the plan says so, or nobody does.")
    if not visit.is_confirmed:
        kind = "override" if use.source == "override" else "limit"
        after = "what was set before" if kind == "override" else "what the plan says, or no limit"
        changes = [Change(words.dimension(dimension), words.number(use.limit.value), after)]
        return visit.confirm(f"End this {kind}?", changes, f"End the {kind}", back=path)
    limits = visit.services.limits
    if use.source == "override":
        await limits.end_override(subject, dimension, by=visit.by)
    else:
        await limits.remove(subject, dimension, by=visit.by)
    return visit.goto(path, done="changed")


def _path(subject: Subject, dimension: str) -> str:
    return f"/tenants/{subject.tenant_id}/limits/{subject.level}/{subject.id}/{dimension}"


def _dimension(visit: Visit) -> str:
    name = visit.place("dimension")
    if name not in DIMENSIONS:
        raise NotFound("there is no such dimension")
    return name


async def _subject(visit: Visit) -> Subject:
    """Somebody of this tenant, or nobody."""
    services, by = visit.services, visit.by
    tenant_id, id = visit.place("tenant_id"), visit.place("subject")
    level = LEVELS.get(visit.place("level"))
    await services.tenants.find(by, tenant_id)
    if level == "key":
        await services.keys.find_in(by, tenant_id, id)
    elif level == "project":
        await services.projects.find(by, tenant_id, id)
    elif level is None or id != tenant_id:
        raise NotFound("there is no such limit")
    return Subject(tenant_id, level, id)


async def _use(visit: Visit, subject: Subject, dimension: str) -> LimitUse | None:
    project_id = subject.id if subject.level == "project" else ""
    key_id = subject.id if subject.level == "key" else ""
    uses = await uses_of(visit.services, Principal(subject.tenant_id, project_id, key_id))
    own = (
        u for u in uses if u.limit.level == subject.level and u.limit.dimension.name == dimension
    )
    return next(own, None)


PAGES = (
    Page("GET", PATH, show),
    Page("POST", PATH, change, "plans", is_staff=True),
    Page("POST", PATH + "/lift", lift, "plans", is_staff=True),
)
