"""How reports, invoices and exports are asked for and answered over HTTP, by whomever."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from fastapi.responses import HTMLResponse
from pydantic import Field
from starlette.responses import Response

from loraplex_platform.files.ranges import Download
from loraplex_platform.kit.json_schema import form
from loraplex_platform.rest.route import RANGES
from loraplex_platform.usage import reports
from loraplex_platform.usage.billing_models import InvoiceRow
from loraplex_platform.usage.export_files import Format
from loraplex_platform.usage.exports import Written
from loraplex_platform.usage.invoice_document import html_of
from loraplex_platform.usage.invoice_schemas import InvoiceDocument
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
    200: {
        "model": InvoiceDocument,
        "content": {"text/html": {}},
        "description": "The document.",
    }
}
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
Moment = Annotated[int, Field(ge=0, lt=253_370_764_800)]  # before the year 9999


def _asked(dimensions: Iterable[str], most: int) -> Any:
    """What usage or costs are wanted: a dependency that tells what they may be grouped by."""
    Dimension = Annotated[str, Field(json_schema_extra={"enum": [*dimensions]})]

    def query_of(
        start_time: Moment,
        end_time: Moment | None = None,
        bucket_width: reports.Width = "1d",
        limit: Annotated[int | None, Query(ge=1, le=most)] = None,
        page: Annotated[str | None, Query(pattern="^[0-9]{1,12}$")] = None,
        time_zone: Annotated[
            str, Query(max_length=64, json_schema_extra=form("time-zone"))
        ] = "UTC",
        group_by: Annotated[list[Dimension] | None, Query()] = None,
        group_by_brackets: Annotated[list[Dimension] | None, Query(alias="group_by[]")] = None,
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

    return Depends(query_of)


MOST_USAGE = max(most for _, most in reports.LIMITS.values())
MOST_COSTS = reports.COST_LIMITS[1]
OfUsage = Annotated[reports.Query, _asked(reports.DIMENSIONS, MOST_USAGE)]
OfCosts = Annotated[reports.Query, _asked(reports.COST_DIMENSIONS, MOST_COSTS)]
OfAllUsage = Annotated[reports.Query, _asked((*reports.DIMENSIONS, *reports.BY_TENANT), MOST_USAGE)]
OfAllCosts = Annotated[
    reports.Query, _asked((*reports.COST_DIMENSIONS, *reports.BY_TENANT), MOST_COSTS)
]


def invoice_answer(row: InvoiceRow, format: Literal["json", "html"]) -> Response:
    """The document as it was made final, byte for byte; or as a page to print."""
    if format == "html":
        page = html_of(row.document, status_of(row))
        return HTMLResponse(page, headers={"content-security-policy": PAGE_POLICY})
    headers = {"etag": f'"{row.sha256}"'}
    return Response(content_of(row), media_type="application/json", headers=headers)


def file_answer(written: Written, format: Format) -> Download:
    """The ETag is of the content: a download goes on (Range, If-Range) in the same bytes or begins anew."""
    path, etag = written.path, f'"{written.sha256}"'
    return Download(
        path, media_type=MEDIA_TYPES[format], filename=path.name, headers={"etag": etag}
    )
