"""Invoices, exports, and usage across tenants."""

from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from loraplex_platform.control.billing_schemas import (
    CreditNoteBody,
    InvoiceBody,
    MonthInPath,
    MonthInQuery,
    month_of,
)
from loraplex_platform.control.schemas import Id
from loraplex_platform.control.services import (
    BillingWriter,
    Exports,
    Invoices,
    Reader,
    StaffReader,
    Tenants,
    UsageReports,
)
from loraplex_platform.files.ranges import Download
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.rest.route import Once, Pages, admin_router
from loraplex_platform.usage.credit_notes import Wish, whole_cents
from loraplex_platform.usage.documents import (
    FILE_ANSWERS,
    INVOICE_ANSWERS,
    OfAllCosts,
    OfAllUsage,
    file_answer,
    invoice_answer,
)
from loraplex_platform.usage.export_files import Format, Kind
from loraplex_platform.usage.invoice_schemas import DraftOut, InvoiceOut
from loraplex_platform.usage.money import pico_of
from loraplex_platform.usage.schemas import Manifest, Report, TenantsCostResult, TenantsUsageResult

router = admin_router()
INVOICES = "/tenants/{tenant_id}/invoices"
INVOICE = INVOICES + "/{invoice_id}"
EXPORT = "/tenants/{tenant_id}/exports/{month}/{kind}.{format}"
OfTenant = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_]{1,64}$")]


@router.get(
    "/usage/completions",
    response_model=Report[TenantsUsageResult],
    response_model_exclude_unset=True,
)
async def get_usage(
    by: StaffReader, query: OfAllUsage, reports: UsageReports, tenant_id: OfTenant = None
) -> dict[str, Any]:
    """As `/v1/organization/usage/completions`, of all tenants or one; groups by tenant_id too."""
    return await reports.completions(tenant_id, query, is_staff=True)


@router.get(
    "/usage/costs", response_model=Report[TenantsCostResult], response_model_exclude_unset=True
)
async def get_costs(
    by: StaffReader, query: OfAllCosts, reports: UsageReports, tenant_id: OfTenant = None
) -> dict[str, Any]:
    """As `/v1/organization/costs`, of all tenants or one; groups by tenant_id too."""
    return await reports.costs(tenant_id, query, is_staff=True)


@router.get(INVOICES)
async def list_invoices(
    tenant_id: Id, by: Reader, tenants: Tenants, invoices: Invoices, pages: Pages
) -> Page[InvoiceOut]:
    await tenants.find(by, tenant_id)
    rows = await invoices.page(tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([InvoiceOut.of(row) for row in rows], pages.limit)


@router.get(INVOICES + "/draft", response_model=DraftOut)
async def draft_invoice(
    tenant_id: Id, month: MonthInQuery, by: Reader, tenants: Tenants, invoices: Invoices
) -> dict[str, Any]:
    """What the month's invoice would say at this moment."""
    return await invoices.draft(await tenants.find(by, tenant_id), month_of(month))


@router.post(INVOICES, status_code=201, dependencies=[Once])
async def finalize_invoice(
    tenant_id: Id, body: InvoiceBody, by: BillingWriter, tenants: Tenants, invoices: Invoices
) -> InvoiceOut:
    """Number a month's invoice; from then on it does not change."""
    tenant = await tenants.find(by, tenant_id)
    return InvoiceOut.of(await invoices.finalize(tenant, month_of(body.month), by=by))


@router.get(INVOICE, response_class=Response, responses=INVOICE_ANSWERS)
async def get_invoice(
    tenant_id: Id,
    invoice_id: Id,
    by: Reader,
    tenants: Tenants,
    invoices: Invoices,
    format: Literal["json", "html"] = "json",
) -> Response:
    await tenants.find(by, tenant_id)
    return invoice_answer(await invoices.get(invoice_id, tenant_id), format)


@router.post(INVOICE + "/pay", dependencies=[Once])
async def pay_invoice(
    tenant_id: Id, invoice_id: Id, by: BillingWriter, invoices: Invoices
) -> InvoiceOut:
    """The money is there; a second time changes nothing."""
    await invoices.get(invoice_id, tenant_id)
    return InvoiceOut.of(await invoices.pay(invoice_id, by=by))


@router.post(INVOICE + "/void", dependencies=[Once])
async def void_invoice(
    tenant_id: Id, invoice_id: Id, by: BillingWriter, invoices: Invoices
) -> InvoiceOut:
    """Take it back with a credit note, which is the answer."""
    await invoices.get(invoice_id, tenant_id)
    return InvoiceOut.of(await invoices.void(invoice_id, by=by))


@router.post(INVOICE + "/credit", dependencies=[Once])
async def credit_invoice(
    tenant_id: Id, invoice_id: Id, body: CreditNoteBody, by: BillingWriter, invoices: Invoices
) -> InvoiceOut:
    """Take back a line of it, or an amount before tax, with a credit note, which is the answer."""
    await invoices.get(invoice_id, tenant_id)
    cents = None if body.amount is None else whole_cents(pico_of(body.amount))
    wish = Wish(body.line, cents, body.reason)
    return InvoiceOut.of(await invoices.credit(invoice_id, wish, by=by))


@router.get(EXPORT + ".manifest.json", response_model=Manifest)
async def get_manifest(
    tenant_id: Id,
    month: MonthInPath,
    kind: Kind,
    format: Format,
    by: Reader,
    tenants: Tenants,
    exports: Exports,
) -> dict[str, Any]:
    """Rows, sums, SHA-256 and price books of that file as it was last handed out."""
    tenant = await tenants.find(by, tenant_id)
    return (await exports.write(tenant, month_of(month), kind, format, is_anew=False)).manifest


@router.get(EXPORT, response_class=Download, responses=FILE_ANSWERS)
async def get_export(
    tenant_id: Id,
    month: MonthInPath,
    kind: Kind,
    format: Format,
    by: Reader,
    tenants: Tenants,
    exports: Exports,
) -> Download:
    """A month as a file; a download that broke off goes on with a Range header."""
    tenant = await tenants.find(by, tenant_id)
    return file_answer(await exports.write(tenant, month_of(month), kind, format), format)
