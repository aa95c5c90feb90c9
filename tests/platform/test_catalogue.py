"""The database's registry and its in-memory twin keep the same promises."""

import pytest

from loraplex_adapters.errors import NameTaken, UnknownName
from loraplex_adapters.registry import InMemoryRegistry, Registry
from loraplex_adapters.report import LoadReport
from loraplex_platform.catalogue.registry import SqlRegistry
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.tenants.service import TenantService

REPORT = LoadReport(base_model=None, rank=8, num_bytes=1, modules=(), unadapted=(), warnings=("w",))


@pytest.fixture
async def tenants(database: Database) -> tuple[str, str]:
    service = TenantService(database, ManualClock())
    return (await service.create("acme")).id, (await service.create("globex")).id


@pytest.fixture(params=["memory", "sql"])
def registry(request: pytest.FixtureRequest, database: Database) -> Registry:
    if request.param == "memory":
        return InMemoryRegistry()
    return SqlRegistry(database, lambda _: REPORT, ManualClock())


async def test_two_tenants_may_use_one_name(registry: Registry, tenants: tuple[str, str]) -> None:
    acme, globex = tenants
    await registry.add(acme, "support", "v1")
    await registry.add(globex, "support", "v2")
    assert (await registry.get(acme, "support")).version == "v1"
    assert [a.version for a in await registry.list(globex)] == ["v2"]


async def test_name_is_taken_until_it_is_removed(
    registry: Registry, tenants: tuple[str, str]
) -> None:
    acme, _ = tenants
    await registry.add(acme, "support", "v1")
    with pytest.raises(NameTaken):
        await registry.add(acme, "support", "v2")
    assert (await registry.remove(acme, "support")).version == "v1"
    await registry.add(acme, "support", "v2")
    assert (await registry.get(acme, "support")).version == "v2"


async def test_another_tenants_name_is_unknown(
    registry: Registry, tenants: tuple[str, str]
) -> None:
    acme, globex = tenants
    await registry.add(acme, "support", "v1")
    with pytest.raises(UnknownName):
        await registry.get(globex, "support")
    with pytest.raises(UnknownName):
        await registry.remove(globex, "support")


async def test_version_is_used_while_anybody_names_it(
    registry: Registry, tenants: tuple[str, str]
) -> None:
    acme, globex = tenants
    await registry.add(acme, "a", "v1")
    await registry.add(globex, "b", "v1")
    await registry.remove(acme, "a")
    assert await registry.is_used("v1")
    await registry.remove(globex, "b")
    assert not await registry.is_used("v1")


async def test_names_are_listed_in_order(registry: Registry, tenants: tuple[str, str]) -> None:
    acme, _ = tenants
    for name in ("b", "a", "c"):
        await registry.add(acme, name, f"version-{name}")
    assert [a.name for a in await registry.list(acme)] == ["a", "b", "c"]
