"""What a month of very many requests costs: roll-ups made anew, and exports, in bounded memory.

Two sizes in one run; the larger may take at most three times as long a row as the smaller. Times are
CPU times of the process, so that a machine that does other things as well says the same.

    PYTHONPATH=. python tests/bench/bench_books.py --events 10000 1000000
"""

import argparse
import asyncio
import re
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tests.many_events import JUNE, effort_of, seed_events

from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.books import rebuild
from loraplex_platform.usage.export_files import Format, Kind
from loraplex_platform.usage.exports import ExportService
from loraplex_platform.usage.invoice_service import Month

AFTER = ManualClock(JUNE + timedelta(days=30))
MOST = 3.0  # times the smaller one's seconds a row
WARM_UP = 1_001  # events of a month that is not compared: statements compile, Arrow loads
FILES: tuple[tuple[Kind, Format], ...] = (
    ("events", "csv"),
    ("focus", "csv"),
    ("events", "jsonl"),
    ("events", "parquet"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one piece of work over one number of events."""

    what: str
    events: int
    seconds: float
    statements: int
    steps: int
    peak_mib: float  # most memory of the process while it worked

    @property
    def a_row_us(self) -> float:
        return self.seconds / self.events * 1e6

    def show(self) -> None:
        print(
            f"{self.what:16} {self.events:>9,} {self.seconds:8.1f} s {self.a_row_us:7.1f} µs/row "
            f"{self.statements:6,} statements {self.steps / self.events:7.0f} steps/row "
            f"{self.peak_mib:6.0f} MiB",
            flush=True,
        )


def forget_peak() -> None:
    """What `peak_mib` says begins at what is resident, whatever ran before."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


async def measured(what: str, events: int, database: Database, work: Awaitable[object]) -> Figures:
    forget_peak()
    with effort_of(database) as effort:
        started_s = time.process_time()
        await work
        seconds = time.process_time() - started_s
    figures = Figures(what, events, seconds, effort.statements, effort.steps, peak_mib())
    figures.show()
    return figures


async def month_of(events: int, folder: Path) -> list[Figures]:
    path = folder / "books.sqlite3"
    upgrade(f"sqlite:///{path}")
    database = Database(f"sqlite:///{path}", pool_size=1)
    tenant = await TenantService(database, SystemClock()).create("acme")
    await database.close()
    await asyncio.to_thread(seed_events, str(path), tenant.id, events)
    found = [await measured("rebuild", events, database, rebuild(database, AFTER))]
    exports = ExportService(database, AFTER, folder / "exports", issuer="Example", region="here")
    for kind, format in FILES:
        await database.close()  # so that the next connection counts
        found.append(await exported(exports, database, tenant, events, kind, format))
    await database.close()
    return found


async def exported(
    exports: ExportService,
    database: Database,
    tenant: Tenant,
    events: int,
    kind: Kind,
    format: Format,
) -> Figures:
    work = exports.write(tenant, Month(2026, 6), kind, format)
    return await measured(f"{kind}.{format}", events, database, work)


async def main(sizes: list[int]) -> None:
    by_work: dict[str, list[Figures]] = {}
    for events in (WARM_UP, *sizes):
        with tempfile.TemporaryDirectory() as folder:
            found = await month_of(events, Path(folder))
        if events != WARM_UP:
            for figures in found:
                by_work.setdefault(figures.what, []).append(figures)
    for what, (smallest, *_, largest) in by_work.items():
        ratio = largest.a_row_us / smallest.a_row_us
        grown = largest.peak_mib - smallest.peak_mib
        verdict = "ok" if ratio <= MOST else f"more than {MOST}"
        print(f"{what:16} {ratio:5.2f} times as long a row ({verdict}), {grown:+.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[10_000, 1_000_000])
    asyncio.run(main(parser.parse_args().events))
