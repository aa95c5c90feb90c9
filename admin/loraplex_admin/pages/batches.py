"""Batch jobs: how far each is; held back, let go, cancelled."""

from starlette.responses import Response

from loraplex_admin.visit import Change, Columns, Page, Visit
from loraplex_platform.batches.service import PAUSABLE, Progress
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Principal

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
        "batch.html",
        batch=batch,
        progress=progress,
        tenant_name=names[progress.tenant_id],
        pausable=PAUSABLE,
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


async def cancel(visit: Visit) -> Response:
    batches, by = visit.services.batches, visit.by
    batch, progress = await batches.find(by, visit.place("batch_id"))
    back = f"/batches/{batch.id}"
    if not visit.is_confirmed:
        done = progress.completed + progress.failed
        note = (
            f"Its {done} finished lines stay in its files and on the bill; it cannot go on again."
        )
        changes = [Change("Batch", batch.status.replace("_", " "), "cancelled")]
        return visit.confirm("Cancel this batch?", changes, "Cancel it", note=note, back=back)
    await batches.cancel(Principal(progress.tenant_id, "", ""), batch.id, by=by.actor)
    return visit.goto(back, done="changed")


PAGES = (
    Page("GET", "/batches", show_all),
    Page("GET", ONE, show),
    Page("POST", ONE, change, "tenants", is_staff=True),
    Page("POST", ONE + "/cancel", cancel, "projects"),
)
