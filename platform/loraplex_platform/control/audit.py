"""`/audit_events`, newest first, and their export."""

from typing import Annotated

from fastapi import Depends, Query
from starlette.responses import StreamingResponse

from loraplex_platform.audit.repository import AuditFilter
from loraplex_platform.control.schemas import AuditOut, Moment, audit_out
from loraplex_platform.control.services import Audit, Reader
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.rest.route import Pages, admin_router

router = admin_router()
Exact = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_/]{1,128}$")]


def audit_filter(
    tenant_id: Exact = None,
    actor_id: Exact = None,
    object_type: Exact = None,
    object_id: Exact = None,
    since: Annotated[Moment | None, Query()] = None,
    until: Annotated[Moment | None, Query()] = None,
) -> AuditFilter:
    return AuditFilter(tenant_id, actor_id, object_type, object_id, since, until)


Wanted = Annotated[AuditFilter, Depends(audit_filter)]


@router.get("/audit_events")
async def list_audit_events(
    by: Reader, audit: Audit, wanted: Wanted, pages: Pages
) -> Page[AuditOut]:
    rows = await audit.page(by, wanted, after=pages.after, limit=pages.limit + 1)
    return page_of([audit_out(row) for row in rows], pages.limit)


@router.get(
    "/audit_events/export",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}, "description": "Lines of JSON."}},
)
async def export_audit_events(by: Reader, audit: Audit, wanted: Wanted) -> StreamingResponse:
    headers = {"content-disposition": "attachment; filename=audit.ndjson"}
    return StreamingResponse(
        audit.export(by, wanted), media_type="application/x-ndjson", headers=headers
    )
