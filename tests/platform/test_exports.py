"""Exports: what was booked, to the pico-dollar, in files that finance can load."""

import asyncio
import csv
import hashlib
import io
import json
import re
import tracemalloc
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest
from tests.asked import asking, steps_of
from tests.focus_validator import faults_of
from tests.usage_stand import NOON, facts, fifty_days, post, two_tenants

from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.models import Tenant
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage import repository
from loraplex_platform.usage.credit_notes import Wish
from loraplex_platform.usage.export_files import Format, Kind
from loraplex_platform.usage.exports import ExportService, Watcher
from loraplex_platform.usage.focus import COLUMNS
from loraplex_platform.usage.invoice_service import InvoiceService, Month
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import dollars
from loraplex_platform.usage.tables import csv_rows, defused

JUNE, JULY = Month(2026, 6), Month(2026, 7)
LATER = ManualClock(datetime(2027, 1, 1, tzinfo=UTC))


@pytest.fixture
async def acme(database: Database) -> Tenant:
    return await fifty_days(database)


@pytest.fixture
def exports(database: Database, tmp_path: Path) -> ExportService:
    return ExportService(
        database, LATER, tmp_path / "exports", issuer="Example", region="test-region"
    )


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
    return list(reader.fieldnames or []), list(reader)


def manifest_of(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.with_name(f"{path.name}.manifest.json").read_text())
    return found


def total_of(rows: list[dict[str, str]], column: str = "BilledCost") -> Decimal:
    return sum((Decimal(row[column]) for row in rows), Decimal(0))


@pytest.mark.parametrize("kind", ["focus", "focus-1.3"])
async def test_focus_files_keep_the_rules(
    exports: ExportService, database: Database, acme: Tenant, kind: Kind
) -> None:
    invoices = InvoiceService(database, LATER, "Example")
    june = await invoices.finalize(acme, JUNE)
    await post(database, [facts(acme.id), facts(acme.id, tier="batch")])
    await invoices.finalize(acme, JULY)
    in_august = ManualClock(datetime(2026, 8, 5, tzinfo=UTC))
    note = await InvoiceService(database, in_august, "Example").credit(june.id, Wish(cents=1234))
    for month in (JUNE, JULY, Month(2026, 8)):
        header, rows = read_csv((await exports.write(acme, month, kind, "csv")).path)
        assert faults_of(header, rows) == []
    of_note = [row for row in rows if row["InvoiceId"] == note.document["number"]]
    assert [row["ChargeCategory"] for row in of_note] == ["Credit", "Tax"]
    assert total_of(of_note) == Decimal(note.document["total"])
    assert len(COLUMNS) == 57


async def test_focus_rows_add_up_to_invoices_and_ledger(
    exports: ExportService, database: Database, acme: Tenant
) -> None:
    invoices = InvoiceService(database, LATER, "Example")
    totals = []
    for month in (JUNE, JULY):
        row = await invoices.finalize(acme, month)
        await post(database, [facts(acme.id, prompt_tokens=10**6)])  # late for June, twice
        _, rows = read_csv((await exports.write(acme, month, "focus", "csv")).path)
        assert {r["InvoiceId"] for r in rows} == {row.document["number"]}
        assert total_of(rows) == Decimal(row.document["total"])
        totals.append(total_of(rows))
    categories = {r["ChargeCategory"] for r in rows}
    assert categories == {"Usage", "Adjustment", "Tax"}
    assert [r["ChargeClass"] for r in rows].count("Correction") == 3
    async with database.reading() as session:
        owed = await LedgerRepository(session).balance(acme.id, "receivable")
    last = facts(acme.id, prompt_tokens=10**6)
    unbilled = dollars((last.prompt_tokens - 40) * 100_000 + 40 * 20_000 + 10 * 400_000)
    rest_of_the_year = total_of(
        read_csv((await exports.write(acme, Month(2026, 8), "focus", "csv")).path)[1]
    )
    hosted = [r for r in rows if r["SkuMeter"] == "Adapter hosting"]
    assert len(hosted) == 1
    assert dollars(owed) == sum(totals) + unbilled + await usage_after(exports, acme)
    assert rest_of_the_year > 0


async def usage_after(exports: ExportService, tenant: Tenant) -> Decimal:
    """Usage of the months without an invoice; hosting is booked with the invoice."""
    total = Decimal(0)
    for month in range(8, 13):
        _, rows = read_csv((await exports.write(tenant, Month(2026, month), "focus", "csv")).path)
        total += sum(Decimal(r["BilledCost"]) for r in rows if r["x_TokenType"] != "hosting")
    return total


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
async def test_events_come_back_to_the_same_sums(
    exports: ExportService, acme: Tenant, format: Format
) -> None:
    path = (await exports.write(acme, JUNE, "events", format)).path
    if format == "csv":
        rows = read_csv(path)[1]
    elif format == "jsonl":
        events = [json.loads(line) for line in path.read_text().splitlines()]
        assert {e["specversion"] for e in events} == {"1.0"}
        rows = [e["data"] for e in events]
    else:
        rows = pq.read_table(path).to_pylist()
    manifest = manifest_of(path)
    assert manifest["rows"] == len(rows) > 60
    assert manifest["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest["price_books"] == ["book_first", "book_first+own"]
    for column, total in manifest["sums"].items():
        assert sum(Decimal(str(row[column])) for row in rows) == Decimal(total)


async def test_regenerated_files_are_the_same_bytes(
    exports: ExportService, database: Database, acme: Tenant
) -> None:
    for kind, format in (("events", "csv"), ("events", "jsonl"), ("focus", "csv")):
        path = (await exports.write(acme, JUNE, kind, format)).path
        first = path.read_bytes()
        path.unlink()
        assert ((await exports.write(acme, JUNE, kind, format)).path).read_bytes() == first
    tables = []
    for _ in range(2):
        path = (await exports.write(acme, JUNE, "focus", "parquet")).path
        tables.append(pq.read_table(path))
        path.unlink()
    assert tables[0].equals(tables[1])


async def test_a_final_months_file_is_written_once(
    exports: ExportService, database: Database, acme: Tenant
) -> None:
    await InvoiceService(database, LATER, "Example").finalize(acme, JUNE)
    first = ((await exports.write(acme, JUNE, "focus", "csv")).path).read_bytes()
    await post(database, [facts(acme.id)])
    path = (await exports.write(acme, JUNE, "focus", "csv")).path
    assert path.read_bytes() == first
    path.unlink()  # made anew, it says what is late, and adds up as before
    again = read_csv((await exports.write(acme, JUNE, "focus", "csv")).path)[1]
    assert total_of(again) == total_of(read_csv_bytes(first))


def read_csv_bytes(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


async def test_formulas_are_defused_and_numbers_stay(exports: ExportService, acme: Tenant) -> None:
    _, rows = read_csv((await exports.write(acme, JUNE, "events", "csv")).path)
    assert {row["model"] for row in rows} == {"tiny", "'=SUM(A1)"}
    assert [defused(text) for text in ("+1", "-1", "@x", "\tx", "", "a=b", None)] == [
        "'+1",
        "'-1",
        "'@x",
        "'\tx",
        "",
        "a=b",
        None,
    ]
    line = csv_rows(["n", "t"], frozenset("n"), [{"n": "-1.5", "t": 'say "hi", ü\r\n'}])
    assert line == '-1.5,"say ""hi"", ü\r\n"\r\n'.encode()


async def test_focus_has_no_json_lines(exports: ExportService, acme: Tenant) -> None:
    with pytest.raises(InvalidRequest):
        await exports.write(acme, JUNE, "focus", "jsonl")


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_month(
    exports: ExportService, database: Database, settings: Settings
) -> None:
    """Three pages more cost no more memory, and no more time a row."""
    tenant_id, _ = await two_tenants(database)
    tenant = await TenantService(database, SystemClock()).get("acme")
    peaks, steps = [], []
    for size in (2_000, 6_000):
        for start in range(0, size, 1_000):
            await post(
                database,
                [
                    facts(tenant_id, started_at=NOON + timedelta(seconds=start + n))
                    for n in range(1_000)
                ],
            )
        tracemalloc.start()
        with asking() as asked:
            path = (await exports.write(tenant, JUNE, "events", "csv")).path
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        steps.append(
            steps_of(asked, settings.home / "loraplex.sqlite3") / int(manifest_of(path)["rows"])
        )
    assert peaks[1] < 2 * peaks[0]
    assert steps[1] < 1.5 * steps[0]


@pytest.fixture
async def paged(database: Database, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    """Acme with three short pages of events in June, which is final."""
    monkeypatch.setattr(repository, "PAGE", 50)
    tenant_id, _ = await two_tenants(database)
    await post(
        database, [facts(tenant_id, started_at=NOON + timedelta(seconds=n)) for n in range(120)]
    )
    tenant = await TenantService(database, SystemClock()).get("acme")
    await InvoiceService(database, LATER, "Example").finalize(tenant, JUNE)
    return tenant


class Interrupted(Exception):
    """As when somebody presses Ctrl-C."""


def break_off(rows: int, total: int | None) -> None:
    assert total == 120
    if rows >= 100:
        raise Interrupted


@pytest.mark.parametrize("format", ["csv", "jsonl"])
async def test_an_export_that_broke_off_is_gone_on_with(
    exports: ExportService, paged: Tenant, tmp_path: Path, format: Format
) -> None:
    said, seen = list[str](), list[int]()
    with pytest.raises(Interrupted):
        await exports.write(paged, JUNE, "events", format, Watcher(rows=break_off))
    [part] = (tmp_path / "exports").rglob("*.part")
    with part.open("ab") as file:
        file.write(b"half a li")  # of a page that was not noted
    watcher = Watcher(rows=lambda rows, _: seen.append(rows), say=said.append)
    written = await exports.write(paged, JUNE, "events", format, watcher)
    assert said == ["goes on after 100 rows of an export that broke off"]
    assert seen == [120]
    content, manifest = written.path.read_bytes(), written.manifest
    written.path.unlink()
    whole = await exports.write(paged, JUNE, "events", format)
    assert whole.path.read_bytes() == content
    assert whole.manifest == manifest
    assert list((tmp_path / "exports").rglob("*.part")) == []


async def test_a_file_without_a_seam_begins_again_and_says_why(
    exports: ExportService, paged: Tenant
) -> None:
    said = list[str]()
    with pytest.raises(Interrupted):
        await exports.write(paged, JUNE, "events", "parquet", Watcher(rows=break_off))
    written = await exports.write(paged, JUNE, "events", "parquet", Watcher(say=said.append))
    assert said == ["an export broke off; it begins again, because such a file has no seam"]
    assert pq.read_table(written.path).num_rows == written.manifest["rows"] == 120


async def test_two_who_want_one_file_get_the_same(exports: ExportService, acme: Tenant) -> None:
    both = await asyncio.gather(*(exports.write(acme, JUNE, "events", "csv") for _ in range(4)))
    assert len({written.sha256 for written in both}) == 1
    assert hashlib.sha256(both[0].path.read_bytes()).hexdigest() == both[0].sha256


@pytest.mark.parametrize("kind", ["events", "focus"])
async def test_duckdb_pandas_and_libreoffice_read_the_same_sums(
    exports: ExportService, database: Database, acme: Tenant, kind: Kind
) -> None:
    await InvoiceService(database, LATER, "Example").finalize(acme, JUNE)
    column = "cost_usd" if kind == "events" else "BilledCost"
    text = "model" if kind == "events" else "ChargeDescription"
    found, texts = set(), []
    for format in ("csv", "parquet"):
        written = await exports.write(acme, JUNE, kind, format)
        path, total = written.path, Decimal(written.manifest["sums"][column])
        found.add(total)
        read = f"read_csv('{path}', all_varchar=true)" if format == "csv" else f"'{path}'"
        query = f'SELECT sum("{column}"::DECIMAL(38, 20)), count(*) FROM {read}'
        sum_there, count = duckdb.sql(query).fetchall()[0]
        assert count == written.manifest["rows"]
        found.add(sum_there)
        if format == "csv":
            frame = pandas.read_csv(path, dtype={column: str}, keep_default_na=False)
            texts.append(sorted(frame[text]))
            texts.append(sorted(row[text] for row in as_libreoffice_reads(path)))
            found.add(sum(Decimal(row[column]) for row in as_libreoffice_reads(path)))
        else:
            frame = pandas.read_parquet(path)
        found.add(sum(map(Decimal, map(str, frame[column])), Decimal(0)))
    assert len(found) == 1
    assert texts[0] == texts[1]


def as_libreoffice_reads(path: Path) -> list[dict[str, str]]:
    """Its defaults: UTF-8, comma, «"» doubled within a field, which may hold line breaks."""
    text = path.read_bytes().decode("utf-8-sig")
    fields = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)')
    lines: list[list[str]] = [[]]
    for quoted, plain, end in fields.findall(text):
        lines[-1].append(quoted.replace('""', '"') or plain)
        if end != ",":
            lines.append([])
    head, *rows = [line for line in lines if line not in ([], [""])]
    return [dict(zip(head, row, strict=True)) for row in rows]
