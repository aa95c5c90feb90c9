"""Limits on what exists: adapters of a tenant, in bytes, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loraplex_adapters.report import LoadReport
from loraplex_platform.admission.plans import PlanService
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.admission.stock import check_adapter_bytes
from loraplex_platform.catalogue.registry import SqlRegistry
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import InvalidRequest, QuotaExceeded
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.tenants.service import TenantService

BYTES, MIB = "adapter_bytes", 2**20
REPORT = LoadReport(base_model=None, rank=8, num_bytes=MIB, modules=(), unadapted=(), warnings=())


@pytest.fixture(params=["sqlite", "postgres"])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """A migrated database of each kind."""
    url = f"sqlite:///{tmp_path / 'stock.sqlite3'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    await asyncio.to_thread(upgrade, url)
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture
async def acme(both: Database) -> str:
    """A tenant that may have three MiB of adapters."""
    tenant = await TenantService(both, ManualClock()).create("acme")
    subject = Subject(tenant.id, "tenant", tenant.id)
    limits = LimitService(both, ManualClock())
    await limits.set(subject, BYTES, 3 * MIB, strict=False)
    return tenant.id


@pytest.fixture
def registry(both: Database) -> SqlRegistry:
    return SqlRegistry(both, lambda _: REPORT, ManualClock(), check_adapter_bytes)


async def test_adapters_added_at_once_never_take_more_than_allowed(
    registry: SqlRegistry, acme: str
) -> None:
    adds = [registry.add(acme, f"name-{i}", f"v{i}") for i in range(10)]
    results = await asyncio.gather(*adds, return_exceptions=True)
    refused = [r for r in results if isinstance(r, QuotaExceeded)]
    assert (len(results) - len(refused), len(refused)) == (3, 7)
    assert len(await registry.list(acme)) == 3


async def test_a_second_name_costs_nothing_and_a_removed_one_makes_room(
    registry: SqlRegistry, acme: str
) -> None:
    for i in range(3):
        await registry.add(acme, f"name-{i}", f"v{i}")
    await registry.add(acme, "alias", "v0")
    with pytest.raises(QuotaExceeded, match="take 3145728 bytes of 3145728; 1048576 more"):
        await registry.add(acme, "one-more", "v3")
    await registry.remove(acme, "name-1")
    await registry.add(acme, "one-more", "v3")


async def test_a_plan_limits_what_its_tenants_have(both: Database, registry: SqlRegistry) -> None:
    plan = await PlanService(both, ManualClock()).create("small", {"limits": {BYTES: MIB}})
    tenants = TenantService(both, ManualClock())
    globex = await tenants.create("globex")
    await tenants.change(COMMAND_LINE, globex.id, {"plan_id": plan.id})
    await registry.add(globex.id, "first", "v0")
    with pytest.raises(QuotaExceeded):
        await registry.add(globex.id, "second", "v1")
    own = Subject(globex.id, "tenant", globex.id)
    await LimitService(both, ManualClock()).set(own, BYTES, 2 * MIB, strict=False)
    await registry.add(globex.id, "second", "v1")


async def test_a_stock_binds_tenants_only(both: Database, acme: str) -> None:
    with pytest.raises(InvalidRequest):
        await LimitService(both, ManualClock()).set(
            Subject(acme, "key", "key_1"), "adapter_bytes", 5, strict=False
        )
