"""Invoices, exports, and usage across tenants."""

from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import FileResponse
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
from loraplex_platform.rest.route import Once, admin_router
from loraplex_platform.usage.credit_notes import Wish, whole_cents
from loraplex_platform.usage.documents import (
    FILE_ANSWERS,
    INVOICE_ANSWERS,
    Asked,
    file_answer,
    invoice_answer,
    summary_of,
)
from loraplex_platform.usage.export_files import Format, Kind
from loraplex_platform.usage.money import pico_of

router = admin_router()
INVOICES = "/tenants/{tenant_id}/invoices"
INVOICE = INVOICES + "/{invoice_id}"
EXPORT = "/tenants/{tenant_id}/exports/{month}/{kind}.{format}"
OfTenant = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_]{1,64}$")]


@router.get("/usage/completions")
async def get_usage(
    by: StaffReader, query: Asked, reports: UsageReports, tenant_id: OfTenant = None
) -> dict[str, Any]:
    """As `/v1/organization/usage/completions`, of all tenants or one; groups by tenant_id too."""
    return await reports.completions(tenant_id, query, is_staff=True)


@router.get("/usage/costs")
async def get_costs(
    by: StaffReader, query: Asked, reports: UsageReports, tenant_id: OfTenant = None
) -> dict[str, Any]:
    """As `/v1/organization/costs`, of all tenants or one; groups by tenant_id too."""
    return await reports.costs(tenant_id, query, is_staff=True)


@router.get(INVOICES)
async def list_invoices(
    tenant_id: Id, by: Reader, tenants: Tenants, invoices: Invoices
) -> dict[str, Any]:
    await tenants.find(by, tenant_id)
    rows = await invoices.list(tenant_id)
    return {"object": "list", "data": [summary_of(row) for row in rows]}


@router.get(INVOICES + "/draft")
async def draft_invoice(
    tenant_id: Id, month: MonthInQuery, by: Reader, tenants: Tenants, invoices: Invoices
) -> dict[str, Any]:
    """What the month's invoice would say at this moment."""
    return await invoices.draft(await tenants.find(by, tenant_id), month_of(month))


@router.post(INVOICES, status_code=201, dependencies=[Once])
async def finalize_invoice(
    tenant_id: Id, body: InvoiceBody, by: BillingWriter, tenants: Tenants, invoices: Invoices
) -> dict[str, Any]:
    """Number a month's invoice; from then on it does not change."""
    tenant = await tenants.find(by, tenant_id)
    return summary_of(await invoices.finalize(tenant, month_of(body.month), by=by))


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
) -> dict[str, Any]:
    """The money is there; a second time changes nothing."""
    await invoices.get(invoice_id, tenant_id)
    return summary_of(await invoices.pay(invoice_id, by=by))


@router.post(INVOICE + "/void", dependencies=[Once])
async def void_invoice(
    tenant_id: Id, invoice_id: Id, by: BillingWriter, invoices: Invoices
) -> dict[str, Any]:
    """Take it back with a credit note, which is the answer."""
    await invoices.get(invoice_id, tenant_id)
    return summary_of(await invoices.void(invoice_id, by=by))


@router.post(INVOICE + "/credit", dependencies=[Once])
async def credit_invoice(
    tenant_id: Id, invoice_id: Id, body: CreditNoteBody, by: BillingWriter, invoices: Invoices
) -> dict[str, Any]:
    """Take back a line of it, or an amount before tax, with a credit note, which is the answer."""
    await invoices.get(invoice_id, tenant_id)
    cents = None if body.amount is None else whole_cents(pico_of(body.amount))
    wish = Wish(body.line, cents, body.reason)
    return summary_of(await invoices.credit(invoice_id, wish, by=by))


@router.get(EXPORT + ".manifest.json")
async def get_manifest(
    tenant_id: Id,
    month: MonthInPath,
    kind: Kind,
    format: Format,
    by: Reader,
    tenants: Tenants,
    exports: Exports,
) -> dict[str, Any]:
    """Rows, sums, SHA-256 and price books of that file."""
    tenant = await tenants.find(by, tenant_id)
    return (await exports.write(tenant, month_of(month), kind, format)).manifest


@router.get(EXPORT, response_class=FileResponse, responses=FILE_ANSWERS)
async def get_export(
    tenant_id: Id,
    month: MonthInPath,
    kind: Kind,
    format: Format,
    by: Reader,
    tenants: Tenants,
    exports: Exports,
) -> FileResponse:
    """A month as a file; a download that broke off goes on with a Range header."""
    tenant = await tenants.find(by, tenant_id)
    return file_answer(await exports.write(tenant, month_of(month), kind, format), format)
