"""Batch jobs: how far each is; held back, let go, cancelled."""

from typing import get_args

from starlette.responses import Response

from loraplex_admin.visit import SHOWN, Change, Page, Visit
from loraplex_platform.batches.repository import SEARCHED, BatchFilter
from loraplex_platform.batches.schemas import Status
from loraplex_platform.batches.service import PAUSABLE
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Principal

ONE = "/batches/{batch_id}"
STATES: tuple[Status, ...] = get_args(Status)


async def show_all(visit: Visit) -> Response:
    services, by = visit.services, visit.by
    wanted = BatchFilter(await visit.tenant_wanted(), visit.wanted("status"))
    rows = await services.batches.seen(by, wanted, **visit.cut)
    return visit.render(
        "batches.html",
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
        tenants=await services.tenants.names(by, {row.tenant_id for row in rows}),
        wanted=wanted,
        states=STATES,
        searched=SEARCHED if wanted.is_searched(visit.sort) else None,
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
