"""Exports: a tenant's month as a file with a manifest; a final month's file is written once and kept."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
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
from loraplex_platform.usage.export_files import (
    Format,
    Kind,
    PartFile,
    Progress,
    Rows,
    Tally,
    open_sink,
    sha256_of,
)
from loraplex_platform.usage.focus_rows import FocusRows
from loraplex_platform.usage.invoice_service import Month
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.repository import Cursor, UsageRepository

KINDS: tuple[Kind, ...] = get_args(Kind)
FORMATS: tuple[Format, ...] = get_args(Format)
SUMMED: dict[str, tuple[str, ...]] = {
    "events": ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd"),
    "focus": ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"),
}


@dataclass(frozen=True, slots=True)
class Written:
    """A whole file, and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def sha256(self) -> str:
        digest: str = self.manifest["sha256"]
        return digest


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who waits for a file: told of its rows (of how many, where that is known), and of surprises."""

    rows: Callable[[int, int | None], None] = lambda rows, total: None
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, slots=True)
class Order:
    """Which file is wanted."""

    tenant: Tenant
    month: Month
    kind: Kind
    format: Format
    period: Period
    invoice: InvoiceRow | None  # of a month that is final

    @property
    def number(self) -> str | None:
        return None if self.invoice is None else self.invoice.document["number"]

    @property
    def can_go_on(self) -> bool:
        return self.kind == "events" and self.format != "parquet"


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
        self,
        principal: Principal,
        month: Month,
        kind: Kind,
        format: Format,
        *,
        is_anew: bool = True,
    ) -> Written:
        """The principal's own."""
        async with self._database.reading(principal) as session:
            tenant = await TenantRepository(session).own(principal)
        return await self.write(tenant, month, kind, format, is_anew=is_anew)

    async def write(
        self,
        tenant: Tenant,
        month: Month,
        kind: Kind,
        format: Format,
        watcher: Watcher | None = None,
        *,
        is_anew: bool = True,
    ) -> Written:
        """The file; its manifest lies beside it, as `<name>.manifest.json`.

        That of an open month is written anew, unless what was last written will do: a manifest is of the
        file that somebody has.
        """
        if kind != "events" and format == "jsonl":
            raise InvalidRequest("FOCUS files are CSV or Parquet", param="format")
        async with self._database.reading() as session:
            billing = BillingRepository(session)
            period = month.period(ZoneInfo((await billing.profile(tenant.id)).zone))
            standing = await billing.standing(tenant.id)
            invoice = next((r for r in standing if r.period_start == period.start), None)
        order = Order(tenant, month, kind, format, period, invoice)
        path = self._path(order)
        part = PartFile(path)
        async with part.held():
            if (invoice is None and is_anew) or not path.exists():
                async with self._database.reading() as session:
                    tally = await self._write(session, order, part, watcher or Watcher())
                manifest = await asyncio.to_thread(_manifest, order, tally, part.path)
                _manifest_path(path).write_text(manifest)
                part.finish(path)
            return Written(path, json.loads(_manifest_path(path).read_text()))

    def _path(self, order: Order) -> Path:
        """Named by us alone; an open month's file is written anew each time."""
        state = "open" if order.invoice is None else f"final-{order.invoice.number:06}"
        month = f"{order.month.year:04}-{order.month.month:02}-{state}"
        folder = self._folder / order.tenant.id / month
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{order.kind}.{order.format}"

    async def _write(
        self, session: AsyncSession, order: Order, part: PartFile, watcher: Watcher
    ) -> Tally:
        columns = SUMMED[order.kind.split("-")[0]]
        before = _earlier(order, part, watcher)
        tally = Tally(columns) if before is None else before.tally(columns)
        if order.kind == "events":
            pages = self._event_pages(session, order, tally, before)
            total = await UsageRepository(session).num_requests(order.tenant.id, order.period)
        else:
            pages, total = self._focus_pages(session, order, tally), None
        size = 0 if before is None else before.num_bytes
        with open_sink(part.path, order.kind, order.format, size) as sink:
            async for cursor, page in pages:
                await asyncio.to_thread(sink.write, page)
                if order.can_go_on and cursor is not None:
                    part.note(cursor, sink.size, tally)
                watcher.rows(tally.rows, total)
        tally.price_books = tally.price_books or await _books(session, order)
        return tally

    async def _event_pages(
        self, session: AsyncSession, order: Order, tally: Tally, before: Progress | None
    ) -> AsyncIterator[tuple[Cursor | None, Rows]]:
        tariffs = await PriceRepository(session).tariffs(order.tenant.id)
        after = None if before is None else before.cursor
        usage = UsageRepository(session)
        async for page in usage.pages(order.period, order.tenant.id, after=after):
            rows = [event_rows.row_of(event, tariffs) for event in page]
            tally.add(rows)
            tally.price_books.update(row["price_book"] for row in rows)
            cursor = (page[-1].started_at, page[-1].request_id)
            if order.format == "jsonl":
                yield cursor, [event_rows.cloud_event_of(event, tariffs) for event in page]
            else:
                yield cursor, rows

    async def _focus_pages(
        self, session: AsyncSession, order: Order, tally: Tally
    ) -> AsyncIterator[tuple[Cursor | None, Rows]]:
        tenant = order.tenant
        account = focus.Account(tenant.id, tenant.name, self._issuer, order.period, order.number)
        rows = FocusRows(session, account, self._region, self._clock.now())
        async for page in rows.pages(order.invoice):
            tally.add(page)
            yield None, page


def _earlier(order: Order, part: PartFile, watcher: Watcher) -> Progress | None:
    """Where a file of a final month that broke off goes on; or why it begins again."""
    progress = part.progress()
    if order.invoice is not None and order.can_go_on and progress is not None:
        watcher.say(f"goes on after {progress.rows} rows of an export that broke off")
        return progress
    if part.path.stat().st_size:
        why = "the month is not final" if order.invoice is None else "such a file has no seam"
        watcher.say(f"an export broke off; it begins again, because {why}")
    part.forget_progress()
    return None


def _manifest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.manifest.json")


def _manifest(order: Order, tally: Tally, path: Path) -> str:
    """Reads the whole file for its checksum."""
    facts = {
        "tenant": order.tenant.id,
        "kind": order.kind,
        "format": order.format,
        "period": {"start": focus.utc(order.period.start), "end": focus.utc(order.period.end)},
        "invoice": order.number,
        "rows": tally.rows,
        "sums": {column: f"{total:f}" for column, total in tally.sums.items()},
        "price_books": sorted(tally.price_books),
        "sha256": sha256_of(path),
    }
    return json.dumps(facts, indent=2, sort_keys=True) + "\n"


async def _books(session: AsyncSession, order: Order) -> set[str]:
    tariffs = await PriceRepository(session).tariffs(order.tenant.id)
    return {tariff.version for _, tariff in tariffs.segments(order.period)}
