"""Who changed what."""

from starlette.responses import Response, StreamingResponse

from loraplex_admin.visit import SHOWN, Page, Visit
from loraplex_platform.audit.repository import AuditFilter

FIELDS = ("tenant_id", "actor_id", "object_type", "object_id")


async def show_audit(visit: Visit) -> Response:
    rows = await visit.services.audit.page(
        visit.by, await _filter(visit), after=visit.wanted("after"), limit=SHOWN + 1
    )
    return visit.render(
        "audit.html",
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
        chosen={name: visit.wanted(name) for name in FIELDS},
    )


async def export(visit: Visit) -> Response:
    return StreamingResponse(
        visit.services.audit.export(visit.by, await _filter(visit)),
        media_type="application/x-ndjson",
        headers={"content-disposition": "attachment; filename=audit.ndjson"},
    )


async def _filter(visit: Visit) -> AuditFilter:
    actor_id, object_type, object_id = (visit.wanted(name) for name in FIELDS[1:])
    return AuditFilter(await visit.tenant_wanted(), actor_id, object_type, object_id)


PAGES = (
    Page("GET", "/audit", show_audit),
    Page("GET", "/audit/export", export),
)
