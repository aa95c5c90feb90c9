"""Exports: a tenant's month as a file with a manifest; a final month's file is written once and kept."""

import asyncio
import hashlib
import importlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol, get_args
from zoneinfo import ZoneInfo

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Principal
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage import event_rows, focus
from loraplex_platform.usage.billing_models import InvoiceRow
from loraplex_platform.usage.billing_repository import BillingRepository
from loraplex_platform.usage.focus_rows import FocusRows
from loraplex_platform.usage.invoice_service import Month
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.repository import UsageRepository
from loraplex_platform.usage.tables import csv_header, csv_rows, json_lines

Kind = Literal["events", "focus", "focus-1.3"]
Format = Literal["jsonl", "csv", "parquet"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORMATS: tuple[Format, ...] = get_args(Format)
SUMMED: dict[str, tuple[str, ...]] = {
    "events": ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd"),
    "focus": ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"),
}
Rows = Sequence[Mapping[str, Any]]
Progress = Callable[[int], None]  # told of the rows so far


class Sink(Protocol):
    def write(self, rows: Rows) -> object: ...


class BytesFile:
    """Rows through a function that makes bytes of them."""

    def __init__(self, path: Path, head: bytes, to_bytes: Callable[[Rows], bytes]) -> None:
        self._file = path.open("wb")
        self._file.write(head)
        self._to_bytes = to_bytes

    def __enter__(self) -> "BytesFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, rows: Rows) -> None:
        self._file.write(self._to_bytes(rows))


@dataclass(slots=True)
class Tally:
    """What the manifest says of the rows."""

    columns: tuple[str, ...]
    rows: int = 0
    sums: dict[str, Decimal] = field(default_factory=dict)
    price_books: set[str] = field(default_factory=set)

    def add(self, rows: Rows) -> None:
        self.rows += len(rows)
        for column in self.columns:
            amounts = (Decimal(str(row[column])) for row in rows)
            self.sums[column] = sum(amounts, self.sums.get(column, Decimal(0)))


class ExportService:
    """Reads a page at a time, so that memory does not grow with the month."""

    def __init__(
        self, database: Database, clock: Clock, folder: Path, *, issuer: str, region: str
    ) -> None:
        self._database = database
        self._clock = clock
        self._folder = folder
        self._issuer = issuer
        self._region = region

    async def write_for(
        self, principal: Principal, month: Month, kind: Kind, format: Format
    ) -> Path:
        """The principal's own."""
        async with self._database.reading(principal) as session:
            tenant = await TenantRepository(session).own(principal)
        return await self.write(tenant, month, kind, format)

    async def write(
        self,
        tenant: Tenant,
        month: Month,
        kind: Kind,
        format: Format,
        progress: Progress = lambda rows: None,
    ) -> Path:
        """The file; its manifest lies beside it, as `<name>.manifest.json`."""
        if kind != "events" and format == "jsonl":
            raise InvalidRequest("FOCUS files are CSV or Parquet", param="format")
        async with self._database.reading() as session:
            billing = BillingRepository(session)
            period = month.period(ZoneInfo((await billing.profile(tenant.id)).zone))
            standing = await billing.standing(tenant.id)
            invoice = next((r for r in standing if r.period_start == period.start), None)
            path = self._path(tenant, month, kind, format, invoice)
            if invoice is None or not path.exists():
                await self._write(session, tenant, period, invoice, path, kind, format, progress)
        return path

    def _path(
        self, tenant: Tenant, month: Month, kind: Kind, format: Format, invoice: InvoiceRow | None
    ) -> Path:
        """Named by us alone; an open month's file is written anew each time."""
        state = "open" if invoice is None else f"final-{invoice.number:06}"
        folder = self._folder / tenant.id / f"{month.year:04}-{month.month:02}-{state}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{kind}.{format}"

    async def _write(
        self,
        session: AsyncSession,
        tenant: Tenant,
        period: Period,
        invoice: InvoiceRow | None,
        path: Path,
        kind: Kind,
        format: Format,
        progress: Progress,
    ) -> None:
        part = path.with_suffix(f".{os.getpid()}.part")
        tally = Tally(SUMMED[kind.split("-")[0]])
        if kind == "events":
            pages = self._event_pages(session, tenant, period, tally, is_raw=format == "jsonl")
        else:
            number = None if invoice is None else invoice.document["number"]
            account = focus.Account(tenant.id, tenant.name, self._issuer, period, number)
            rows = FocusRows(session, account, self._region, self._clock.now())
            pages = _tallied(rows.pages(invoice), tally)
        with _open(part, kind, format) as sink:
            async for page in pages:
                await asyncio.to_thread(sink.write, page)
                progress(tally.rows)
        manifest = {
            "tenant": tenant.id,
            "kind": kind,
            "format": format,
            "period": {"start": focus.utc(period.start), "end": focus.utc(period.end)},
            "invoice": None if invoice is None else invoice.document["number"],
            "rows": tally.rows,
            "sums": {column: f"{total:f}" for column, total in tally.sums.items()},
            "price_books": sorted(tally.price_books) or await _books(session, tenant, period),
            "sha256": await asyncio.to_thread(_sha256, part),
        }
        text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
        path.with_name(f"{path.name}.manifest.json").write_text(text)
        part.rename(path)

    async def _event_pages(
        self, session: AsyncSession, tenant: Tenant, period: Period, tally: Tally, *, is_raw: bool
    ) -> AsyncIterator[Rows]:
        tariffs = await PriceRepository(session).tariffs(tenant.id)
        async for page in UsageRepository(session).pages(period, tenant.id):
            rows = [event_rows.row_of(event, tariffs) for event in page]
            tally.add(rows)
            tally.price_books.update(row["price_book"] for row in rows)
            yield [event_rows.cloud_event_of(e, tariffs) for e in page] if is_raw else rows


async def _tallied(pages: AsyncIterator[list[focus.Row]], tally: Tally) -> AsyncIterator[Rows]:
    async for page in pages:
        tally.add(page)
        yield page


async def _books(session: AsyncSession, tenant: Tenant, period: Period) -> list[str]:
    tariffs = await PriceRepository(session).tariffs(tenant.id)
    return sorted({tariff.version for _, tariff in tariffs.segments(period)})


def _open(path: Path, kind: Kind, format: Format) -> AbstractContextManager[Sink]:
    if kind == "events":
        columns, numbers = event_rows.COLUMNS, event_rows.NUMBERS
    else:
        names = focus.columns_of(kind.removeprefix("focus-"))
        numbers = focus.NUMBERS
        columns = {name: "number" if name in numbers else "text" for name in names}
    if format == "jsonl":
        return BytesFile(path, b"", json_lines)
    if format == "csv":
        names = tuple(columns)
        return BytesFile(path, csv_header(names), lambda rows: csv_rows(names, numbers, rows))
    try:  # pyarrow is an optional extra, and large: it is loaded when a file asks for it
        parquet = importlib.import_module("loraplex_platform.usage.parquet")
    except ModuleNotFoundError as error:
        raise InvalidRequest("Parquet needs the extra: pip install 'loraplex[export]'") from error
    sink: AbstractContextManager[Sink] = parquet.ParquetFile(path, columns)
    return sink


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
