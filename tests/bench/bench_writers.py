"""What a write waits for when many write at once, each in a unit of work of its own.

`usage` posts a request to the books (some ten statements), `row` inserts one row.

    PYTHONPATH=. python tests/bench/bench_writers.py --writers 16 --seconds 5
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession
from tests.services import running_postgres
from tests.usage_stand import facts

from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.ids import new_id
from loraplex_platform.models import AuditEvent
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.books import Books
from loraplex_platform.usage.price_service import PriceService

Unit = Callable[[AsyncSession, str], Awaitable[None]]


def units_of(database: Database) -> dict[str, Unit]:
    clock = SystemClock()
    books = Books(PriceService(database, clock), clock)

    async def usage(session: AsyncSession, tenant_id: str) -> None:
        await books.post(session, [facts(tenant_id)])

    async def row(session: AsyncSession, tenant_id: str) -> None:
        values = {
            "action": "a",
            "object_type": "o",
            "object_id": "o",
            "actor_id": "",
            "actor_name": "",
        }
        audit_id, kind = new_id("aud"), {"actor_kind": "system", "at": clock.now()}
        session.add(AuditEvent(id=audit_id, tenant_id=tenant_id, **kind, **values))

    return {"usage": usage, "row": row}


async def write(database: Database, unit: Unit, tenant_id: str, seconds: float) -> list[float]:
    """One writer's units of work, one after the other: the seconds each took."""
    taken, end = [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        async with database.unit_of_work() as session:
            await unit(session, tenant_id)
        taken.append(time.perf_counter() - started)
    return taken


async def read(database: Database, seconds: float) -> list[float]:
    """A reader beside them."""
    taken, tenants = [], TenantService(database, SystemClock())
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        await tenants.get("t0")
        taken.append(time.perf_counter() - started)
        await asyncio.sleep(0.005)
    return taken


async def measure(name: str, url: str, writers: int, seconds: float) -> None:
    await asyncio.to_thread(upgrade, url)
    async with opened(url, writers) as database:
        tenants = TenantService(database, SystemClock())
        ids = [(await tenants.create(f"t{i}")).id for i in range(writers)]
        for kind, unit in units_of(database).items():
            for of in ids:  # compiles the statements
                await write(database, unit, of, 0.001)
            reading = asyncio.create_task(read(database, seconds))
            taken = await asyncio.gather(*(write(database, unit, of, seconds) for of in ids))
            every = [second for writer in taken for second in writer]
            rate = f"{writers} writers of {kind}, {len(every) / seconds:.0f}/s"
            print(f"{name}: {rate}, {told(every)}; reader {told(await reading)}")


def told(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    p50, p99, worst = cuts[49], cuts[98], max(seconds)
    return f"p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, max {worst * 1e3:.0f} ms"


@asynccontextmanager
async def opened(url: str, pool_size: int) -> AsyncIterator[Database]:
    database = Database(url, pool_size=pool_size)
    yield database
    await database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--postgres", action="store_true", help="the same on Postgres")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'bench.sqlite3'}"
        asyncio.run(measure("sqlite", url, given.writers, given.seconds))
    if given.postgres:
        with running_postgres() as server:
            url = server.create_database("bench")
            asyncio.run(measure("postgres", url, given.writers, given.seconds))


if __name__ == "__main__":
    main()
