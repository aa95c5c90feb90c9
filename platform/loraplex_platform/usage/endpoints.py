"""`/v1/organization`: a tenant's usage, costs, invoices and exports."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import FileResponse, HTMLResponse
from starlette.responses import Response

from loraplex_platform.auth.dependencies import principal_with
from loraplex_platform.kit.principal import Principal
from loraplex_platform.rest.route import TENANT_ERRORS
from loraplex_platform.usage import exports, reports
from loraplex_platform.usage.billing_models import InvoiceRow
from loraplex_platform.usage.invoice_document import html_of
from loraplex_platform.usage.invoice_service import InvoiceService, Month, content_of, status_of

router = APIRouter(prefix="/v1/organization", responses=TENANT_ERRORS)
UsagePrincipal = Annotated[Principal, Depends(principal_with("usage:read"))]
MEDIA_TYPES = {
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def query_of(
    start_time: int,
    end_time: int | None = None,
    bucket_width: reports.Width = "1d",
    limit: int | None = None,
    page: str | None = None,
    group_by: Annotated[list[str] | None, Query()] = None,
    group_by_brackets: Annotated[list[str] | None, Query(alias="group_by[]")] = None,
    project_ids: Annotated[list[str] | None, Query()] = None,
    project_ids_brackets: Annotated[list[str] | None, Query(alias="project_ids[]")] = None,
    api_key_ids: Annotated[list[str] | None, Query()] = None,
    api_key_ids_brackets: Annotated[list[str] | None, Query(alias="api_key_ids[]")] = None,
    models: Annotated[list[str] | None, Query()] = None,
    models_brackets: Annotated[list[str] | None, Query(alias="models[]")] = None,
) -> reports.Query:
    """Lists are written `name=a&name=b`, or with brackets, as the official client does."""
    return reports.Query(
        start_time=start_time,
        end_time=end_time,
        bucket_width=bucket_width,
        limit=limit,
        page=page,
        group_by=tuple((group_by or []) + (group_by_brackets or [])),
        project_ids=tuple((project_ids or []) + (project_ids_brackets or [])),
        api_key_ids=tuple((api_key_ids or []) + (api_key_ids_brackets or [])),
        models=tuple((models or []) + (models_brackets or [])),
    )


def reports_of(request: Request) -> reports.Reports:
    service: reports.Reports = request.app.state.reports
    return service


def invoices_of(request: Request) -> InvoiceService:
    service: InvoiceService = request.app.state.invoices
    return service


def exports_of(request: Request) -> exports.ExportService:
    service: exports.ExportService = request.app.state.exports
    return service


Asked = Annotated[reports.Query, Depends(query_of)]
Reports = Annotated[reports.Reports, Depends(reports_of)]
Invoices = Annotated[InvoiceService, Depends(invoices_of)]
Exports = Annotated[exports.ExportService, Depends(exports_of)]


@router.get("/usage/completions")
async def get_usage(principal: UsagePrincipal, query: Asked, service: Reports) -> dict[str, Any]:
    return await service.completions(principal.tenant_id, query)


@router.get("/costs")
async def get_costs(principal: UsagePrincipal, query: Asked, service: Reports) -> dict[str, Any]:
    return await service.costs(principal.tenant_id, query)


@router.get("/invoices")
async def list_invoices(principal: UsagePrincipal, service: Invoices) -> dict[str, Any]:
    rows = await service.list(principal.tenant_id)
    return {"object": "list", "data": [summary_of(row) for row in rows]}


@router.get("/invoices/{invoice_id}")
async def get_invoice(
    invoice_id: str,
    principal: UsagePrincipal,
    service: Invoices,
    format: Literal["json", "html"] = "json",
) -> Response:
    """The document as it was made final, byte for byte; or as a page to print."""
    row = await service.get(invoice_id, principal.tenant_id)
    if format == "html":
        page = html_of(row.document, status_of(row))
        return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY})
    return Response(content_of(row), media_type="application/json", headers={"etag": row.sha256})


@router.get("/exports/{year}-{month}/{kind}.{format}")
async def get_export(
    year: int,
    month: int,
    kind: exports.Kind,
    format: exports.Format,
    principal: UsagePrincipal,
    service: Exports,
) -> FileResponse:
    """A month in the tenant's zone; a download that broke off goes on with a Range header."""
    path = await service.write_for(principal, Month.of(year, month), kind, format)
    return FileResponse(path, media_type=MEDIA_TYPES[format], filename=path.name)


def summary_of(row: InvoiceRow) -> dict[str, Any]:
    return {
        "object": "organization.invoice",
        "id": row.id,
        "number": row.document["number"],
        "title": row.document["title"],
        "status": status_of(row),
        "period": row.document["period"],
        "total": row.document["total"],
        "currency": row.document["currency"],
        "due_at": int(row.due_at.timestamp()),
        "sha256": row.sha256,
    }
