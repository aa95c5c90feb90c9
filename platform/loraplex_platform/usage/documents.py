"""How reports, invoices and exports are asked for and answered over HTTP, by whomever."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from fastapi import Depends, Query
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from starlette.responses import Response

from loraplex_platform.files.ranges import Download
from loraplex_platform.kit.pagination import Listed
from loraplex_platform.rest.route import RANGES
from loraplex_platform.usage import reports
from loraplex_platform.usage.billing_models import InvoiceRow
from loraplex_platform.usage.export_files import Format
from loraplex_platform.usage.exports import Written
from loraplex_platform.usage.invoice_document import html_of
from loraplex_platform.usage.invoice_service import content_of, status_of
from loraplex_platform.usage.periods import zone_of

MEDIA_TYPES: dict[Format, str] = {
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
FILE_ANSWERS: dict[int | str, dict[str, Any]] = {
    **RANGES,
    200: {"content": {kind: {} for kind in MEDIA_TYPES.values()}, "description": "The file."},
}
INVOICE_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/html": {}}, "description": "The document."}
}
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def query_of(
    start_time: int,
    end_time: int | None = None,
    bucket_width: reports.Width = "1d",
    limit: int | None = None,
    page: str | None = None,
    time_zone: Annotated[str, Query(max_length=64)] = "UTC",
    group_by: Annotated[list[str] | None, Query()] = None,
    group_by_brackets: Annotated[list[str] | None, Query(alias="group_by[]")] = None,
    project_ids: Annotated[list[str] | None, Query()] = None,
    project_ids_brackets: Annotated[list[str] | None, Query(alias="project_ids[]")] = None,
    api_key_ids: Annotated[list[str] | None, Query()] = None,
    api_key_ids_brackets: Annotated[list[str] | None, Query(alias="api_key_ids[]")] = None,
    models: Annotated[list[str] | None, Query()] = None,
    models_brackets: Annotated[list[str] | None, Query(alias="models[]")] = None,
) -> reports.Query:
    """Lists are written `name=a&name=b`, or with brackets, as the official client does.

    Hours, days and months are those of `time_zone`; months and it are our own.
    """
    return reports.Query(
        start_time=start_time,
        end_time=end_time,
        bucket_width=bucket_width,
        limit=limit,
        page=page,
        zone=zone_of(time_zone, "time_zone"),
        group_by=tuple((group_by or []) + (group_by_brackets or [])),
        project_ids=tuple((project_ids or []) + (project_ids_brackets or [])),
        api_key_ids=tuple((api_key_ids or []) + (api_key_ids_brackets or [])),
        models=tuple((models or []) + (models_brackets or [])),
    )


Asked = Annotated[reports.Query, Depends(query_of)]


def invoice_answer(row: InvoiceRow, format: Literal["json", "html"]) -> Response:
    """The document as it was made final, byte for byte; or as a page to print."""
    if format == "html":
        page = html_of(row.document, status_of(row))
        return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY})
    return Response(content_of(row), media_type="application/json", headers={"etag": row.sha256})


def file_answer(written: Written, format: Format) -> Download:
    """The ETag is of the content: a download goes on (Range, If-Range) in the same bytes or begins anew."""
    path, etag = written.path, f'"{written.sha256}"'
    return Download(
        path, media_type=MEDIA_TYPES[format], filename=path.name, headers={"etag": etag}
    )


class InvoicePeriod(BaseModel):
    start: datetime
    end: datetime
    time_zone: str


class InvoiceOut(Listed):
    """What a list says of an invoice or a credit note."""

    object: Literal["organization.invoice"] = "organization.invoice"
    number: str
    title: str
    status: str
    period: InvoicePeriod
    total: str
    currency: str
    due_at: int
    sha256: str  # of the document

    @classmethod
    def of(cls, row: InvoiceRow) -> Self:
        told = {
            name: row.document[name] for name in ("number", "title", "period", "total", "currency")
        }
        due_at = int(row.due_at.timestamp())
        return cls(id=row.id, status=status_of(row), due_at=due_at, sha256=row.sha256, **told)
