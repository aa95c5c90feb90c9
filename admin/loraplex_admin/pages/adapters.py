"""A tenant's adapters: uploaded, which version answers, to whom, and what its load report says."""

from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from loraplex_admin.visit import SHOWN, Change, Page, Visit
from loraplex_platform.catalogue.service import Entry
from loraplex_platform.catalogue.upload import receive
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Principal
from loraplex_platform.tenants.models import Tenant

ALL = "/tenants/{tenant_id}/adapters"
ONE = ALL + "/{name:path}"


async def show_all(visit: Visit) -> Response:
    services, tenant = visit.services, await _tenant(visit)
    principal = Principal(tenant.id, "", "")
    rows = await services.adapters.catalogue.page(principal, **visit.cut)
    return visit.render(
        "adapters.html",
        tenant=tenant,
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
    )


async def upload(visit: Visit) -> Response:
    """A new name answers at once; a version of a name that there is waits to be made current."""
    by, desk = visit.by, visit.services.adapters
    tenant = await visit.services.tenants.find(by, visit.text("tenant_id"))
    chosen = [
        (part, file)
        for part, file in visit.form.multi_items()
        if isinstance(file, UploadFile) and file.filename
    ]
    sent = FormData([("name", visit.text("name")), *chosen])
    with desk.catalogue.draft() as folder:
        received = await receive(sent, folder)
        made = await desk.add(
            Principal(tenant.id, "", ""), received.fields.name, folder, by=by.actor, activate=False
        )
    path = f"/tenants/{tenant.id}/adapters/{made.name.name}"
    return visit.goto(path, version=str(made.version.number), done="created")


async def show(visit: Visit) -> Response:
    tenant, entry = await _tenant(visit), await _entry(visit)
    numbers = {row.number: row for row in entry.versions}
    shown = numbers.get(_number(visit.query.get("version")) or entry.name.current)
    if shown is None:
        raise InvalidRequest("There is no such version.", param="version")
    return visit.render(
        "adapter.html",
        tenant=tenant,
        adapter=entry.name,
        versions=entry.versions[::-1],
        shown=shown,
    )


async def change(visit: Visit) -> Response:
    """One of its actions; each says first what it will do."""
    tenant, entry = await _tenant(visit), await _entry(visit)
    back = f"/tenants/{tenant.id}/adapters/{entry.name.name}"
    action = visit.text("action")
    if action == "preload":
        principal = Principal(tenant.id, "", "")
        await visit.services.adapters.preload(principal, entry.name.name, by=visit.by.actor)
        return visit.goto(back, done="sent")
    if action not in ACTIONS:
        raise InvalidRequest("There is no such action.", param="action")
    changes = _changes(visit, entry, action)
    if not visit.is_confirmed:
        note = "Running requests end with the version that they began with."
        title = f"{ACTIONS[action]}: {entry.name.name}?"
        return visit.confirm(title, changes, ACTIONS[action], note=note, back=back)
    await _act(visit, entry, action)
    return visit.goto(back, done="changed")


ACTIONS = {
    "point": "Make current",
    "canary": "Start canary",
    "rollback": "Roll back",
    "disable": "Disable",
    "enable": "Enable",
}


def _changes(visit: Visit, entry: Entry, action: str) -> list[Change]:
    name = entry.name
    current, canary = f"version {name.current}", "none"
    if name.canary is not None:
        canary = f"version {name.canary} for {name.canary_percent} %"
    match action:
        case "point":
            return [Change("Answers", current, f"version {visit.integer('number')}")]
        case "canary":
            share = f"version {visit.integer('number')} for {_percent(visit)} %"
            return [Change("Canary", canary, share)]
        case "rollback" if name.canary is not None:
            return [Change("Canary", canary, "none")]
        case "rollback":
            return [Change("Answers", current, f"version {name.previous}")]
        case _:
            states = ("answers requests", "refuses requests")
            before, after = states if action == "disable" else states[::-1]
            return [Change("Adapter", before, after)]


async def _act(visit: Visit, entry: Entry, action: str) -> None:
    catalogue, by = visit.services.adapters.catalogue, visit.by.actor
    principal, name = Principal(entry.name.tenant_id, "", ""), entry.name.name
    match action:
        case "rollback":
            await catalogue.roll_back(principal, name, by=by)
        case "point":
            await catalogue.change(principal, name, {"current": visit.integer("number")}, by=by)
        case "canary":
            share = {"version": visit.integer("number"), "percent": _percent(visit)}
            await catalogue.change(principal, name, {"canary": share}, by=by)
        case _:
            await catalogue.change(principal, name, {"enabled": action == "enable"}, by=by)


def _percent(visit: Visit) -> int:
    percent = visit.integer("percent")
    if percent > 100:
        raise InvalidRequest("A share is from 0 to 100 percent.", param="percent")
    return percent


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None


async def _tenant(visit: Visit) -> Tenant:
    return await visit.services.tenants.find(visit.by, visit.place("tenant_id"))


async def _entry(visit: Visit) -> Entry:
    principal = Principal(visit.place("tenant_id"), "", "")
    return await visit.services.adapters.catalogue.get(principal, visit.place("name"))


PAGES = (
    Page("GET", ALL, show_all),
    Page("POST", "/adapters", upload, "projects", max_files=3),
    Page("GET", ONE, show),
    Page("POST", ONE, change, "projects"),
)
