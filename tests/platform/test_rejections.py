"""Rejections on both databases: counted once, whoever writes them, and never lost to a fault."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.exc import SQLAlchemyError
from tests.platform_stand import home_like

from loraplex_platform.admission.limits import REQUESTS_PER_MINUTE, Limit, Rejection
from loraplex_platform.admission.rejections import SAMPLES_PER_KEY, RejectionLog
from loraplex_platform.admission.repository import RejectionRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.principal import Principal
from loraplex_platform.tenants.service import TenantService

LIMIT = Limit(REQUESTS_PER_MINUTE, "key", "key_1", 5)
REJECTION = Rejection(LIMIT, requested=1, used=5, retry_after_s=12.0, reason="exceeded")


@pytest.fixture(params=["sqlite", "postgres"])
async def both(
    request: pytest.FixtureRequest, tmp_path: Path, migrated: Path
) -> AsyncIterator[Database]:
    """A migrated database of each kind."""
    if request.param == "postgres":
        url = request.getfixturevalue("migrated_postgres_url")
    else:
        url = home_like(migrated.parent, tmp_path).database
    database = Database(url)
    yield database
    await database.close()


async def principal_in(database: Database, clock: ManualClock) -> Principal:
    tenant = await TenantService(database, clock).create("acme")
    return Principal(tenant.id, "proj_1", "key_1")


async def written(database: Database, principal: Principal) -> tuple[list[int], list[str]]:
    """Counts by row, and the samples' request ids."""
    async with database.reading() as session:
        rejections = RejectionRepository(session)
        clock = ManualClock()
        counts = await rejections.counts_of(principal.tenant_id, clock.now())
        samples = await rejections.samples_of(principal.tenant_id)
    return [row.count for row in counts], [s["request_id"] for row in samples for s in row.samples]


async def test_workers_add_to_the_same_row_of_a_minute(both: Database) -> None:
    clock = ManualClock()
    principal = await principal_in(both, clock)
    workers = [RejectionLog(both, clock) for _ in range(3)]
    for number, worker in enumerate(workers):
        for i in range(4):
            worker.add(principal, f"req_{number}_{i}", REJECTION)
    await asyncio.gather(*(worker.flush() for worker in workers))
    clock.advance(60)
    workers[0].add(principal, "req_later", REJECTION)
    await workers[0].flush()
    counts, samples = await written(both, principal)
    assert counts == [12, 1]
    assert len(samples) == 13
    assert samples[-1] == "req_later"


async def test_the_last_hundred_samples_of_a_key_are_kept(both: Database) -> None:
    clock = ManualClock()
    principal, log = await principal_in(both, clock), RejectionLog(both, clock)
    for i in range(3 * SAMPLES_PER_KEY):
        log.add(principal, f"req_{i}", REJECTION)
        if i % 70 == 0:
            await log.flush()
    await log.flush()
    counts, samples = await written(both, principal)
    assert counts == [3 * SAMPLES_PER_KEY]
    assert samples == [f"req_{i}" for i in range(2 * SAMPLES_PER_KEY, 3 * SAMPLES_PER_KEY)]


async def test_what_could_not_be_written_is_written_later(both: Database, tmp_path: Path) -> None:
    clock = ManualClock()
    principal = await principal_in(both, clock)
    unmigrated = Database(f"sqlite:///{tmp_path / 'unmigrated.sqlite3'}")
    log = RejectionLog(unmigrated, clock)
    log.add(principal, "req_1", REJECTION)
    with pytest.raises(SQLAlchemyError):
        await log.flush()
    log.add(principal, "req_2", REJECTION)
    log._database = both
    await log.flush()
    assert await written(both, principal) == ([2], ["req_1", "req_2"])
    await unmigrated.close()


async def test_nothing_to_write_opens_no_transaction(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'none' / 'missing.sqlite3'}")
    await RejectionLog(database, ManualClock()).flush()
    await database.close()
