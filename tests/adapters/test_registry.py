import pytest

from loraplex_adapters.errors import NameTaken, UnknownName
from loraplex_adapters.registry import InMemoryRegistry, Registry


async def test_two_tenants_may_use_one_name() -> None:
    registry: Registry = InMemoryRegistry()
    await registry.add("acme", "support", "v1")
    await registry.add("globex", "support", "v2")
    assert (await registry.get("acme", "support")).version == "v1"
    assert (await registry.get("globex", "support")).version == "v2"


async def test_another_tenants_name_is_unknown() -> None:
    registry = InMemoryRegistry()
    await registry.add("acme", "support", "v1")
    with pytest.raises(UnknownName):
        await registry.get("globex", "support")
    assert await registry.list("globex") == []


async def test_name_is_given_once() -> None:
    registry = InMemoryRegistry()
    await registry.add("acme", "support", "v1")
    with pytest.raises(NameTaken):
        await registry.add("acme", "support", "v2")


async def test_version_is_used_until_its_last_name_goes() -> None:
    registry = InMemoryRegistry()
    await registry.add("acme", "a", "v1")
    await registry.add("globex", "b", "v1")
    await registry.remove("acme", "a")
    assert await registry.is_used("v1")
    await registry.remove("globex", "b")
    assert not await registry.is_used("v1")
    with pytest.raises(UnknownName):
        await registry.remove("globex", "b")
