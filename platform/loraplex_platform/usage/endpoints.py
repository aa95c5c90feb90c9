"""`/v1/organization`: a tenant's usage, costs, invoices and exports."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from loraplex_platform.auth.dependencies import principal_with
from loraplex_platform.files.ranges import Download
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.kit.principal import Principal
from loraplex_platform.rest.route import TENANT_ERRORS, Pages
from loraplex_platform.usage import reports
from loraplex_platform.usage.documents import (
    FILE_ANSWERS,
    INVOICE_ANSWERS,
    OfCosts,
    OfUsage,
    file_answer,
    invoice_answer,
)
from loraplex_platform.usage.export_files import Format, Kind
from loraplex_platform.usage.exports import ExportService
from loraplex_platform.usage.invoice_schemas import InvoiceOut
from loraplex_platform.usage.invoice_service import InvoiceService, Month
from loraplex_platform.usage.schemas import CostResult, Manifest, Report, UsageResult

router = APIRouter(prefix="/v1/organization", responses=TENANT_ERRORS)
UsagePrincipal = Annotated[Principal, Depends(principal_with("usage:read"))]
EXPORT = "/exports/{year}-{month}/{kind}.{format}"


def reports_of(request: Request) -> reports.Reports:
    service: reports.Reports = request.app.state.reports
    return service


def invoices_of(request: Request) -> InvoiceService:
    service: InvoiceService = request.app.state.invoices
    return service


def exports_of(request: Request) -> ExportService:
    service: ExportService = request.app.state.exports
    return service


Reports = Annotated[reports.Reports, Depends(reports_of)]
Invoices = Annotated[InvoiceService, Depends(invoices_of)]
Exports = Annotated[ExportService, Depends(exports_of)]


@router.get("/usage/completions", response_model=Report[UsageResult])
async def get_usage(principal: UsagePrincipal, query: OfUsage, service: Reports) -> dict[str, Any]:
    return await service.completions(principal.tenant_id, query)


@router.get("/costs", response_model=Report[CostResult])
async def get_costs(principal: UsagePrincipal, query: OfCosts, service: Reports) -> dict[str, Any]:
    return await service.costs(principal.tenant_id, query)


@router.get("/invoices")
async def list_invoices(
    principal: UsagePrincipal, service: Invoices, pages: Pages
) -> Page[InvoiceOut]:
    rows = await service.page(principal.tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([InvoiceOut.of(row) for row in rows], pages.limit)


@router.get("/invoices/{invoice_id}", response_class=Response, responses=INVOICE_ANSWERS)
async def get_invoice(
    invoice_id: str,
    principal: UsagePrincipal,
    service: Invoices,
    format: Literal["json", "html"] = "json",
) -> Response:
    return invoice_answer(await service.get(invoice_id, principal.tenant_id), format)


@router.get(EXPORT + ".manifest.json", response_model=Manifest)
async def get_manifest(
    year: int, month: int, kind: Kind, format: Format, principal: UsagePrincipal, service: Exports
) -> dict[str, Any]:
    """Rows, sums, SHA-256 and price books of that file as it was last handed out."""
    of = Month.of(year, month)
    written = await service.write_for(principal, of, kind, format, is_anew=False)
    return written.manifest


@router.get(EXPORT, response_class=Download, responses=FILE_ANSWERS)
async def get_export(
    year: int, month: int, kind: Kind, format: Format, principal: UsagePrincipal, service: Exports
) -> Download:
    """A month in the tenant's zone; a download that broke off goes on with a Range header."""
    written = await service.write_for(principal, Month.of(year, month), kind, format)
    return file_answer(written, format)
