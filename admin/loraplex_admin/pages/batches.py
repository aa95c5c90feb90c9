"""Batch jobs: how far each is; held back and let go."""

from starlette.responses import Response

from loraplex_admin.visit import Change, Columns, Page, Visit
from loraplex_platform.batches.service import Progress
from loraplex_platform.kit.errors import InvalidRequest

SHOWN = 100
ONE = "/batches/{batch_id}"
COLUMNS: Columns[Progress] = {
    "status": lambda row: row.status,
    "lines": lambda row: row.total,
    "speed": lambda row: row.lines_per_s,
    "ends": lambda row: row.ends_at,
}


async def show_all(visit: Visit) -> Response:
    services, by = visit.services, visit.by
    tenant_id = await visit.tenant_wanted()
    rows = await services.batches.seen(by, tenant_id=tenant_id, limit=SHOWN)
    return visit.render(
        "batches.html",
        rows=visit.sorted(rows, COLUMNS),
        tenants=await services.tenants.names(by, {row.tenant_id for row in rows}),
        tenant_id=tenant_id,
        most=SHOWN,
    )


async def show(visit: Visit) -> Response:
    services, by = visit.services, visit.by
    batch, progress = await services.batches.find(by, visit.place("batch_id"))
    names = await services.tenants.names(by, {progress.tenant_id})
    return visit.render(
        "batch.html", batch=batch, progress=progress, tenant_name=names[progress.tenant_id]
    )


async def change(visit: Visit) -> Response:
    """Pause or resume."""
    batches, by = visit.services.batches, visit.by
    batch, progress = await batches.find(by, visit.place("batch_id"))
    action, back = visit.text("action"), f"/batches/{batch.id}"
    if action not in ("pause", "resume"):
        raise InvalidRequest("action must be pause or resume", param="action")
    if not visit.is_confirmed:
        words = {"pause": "paused", "resume": "goes on"}
        changes = [Change("Batch", "paused" if progress.is_paused else "goes on", words[action])]
        note = "Lines at work end; its window goes on." if action == "pause" else ""
        verb = action.capitalize()
        return visit.confirm(f"{verb} this batch?", changes, verb, note=note, back=back)
    await (batches.pause if action == "pause" else batches.resume)(batch.id, by=by)
    return visit.goto(back, done="changed")


PAGES = (
    Page("GET", "/batches", show_all),
    Page("GET", ONE, show),
    Page("POST", ONE, change, "tenants", is_staff=True),
)
