"""Which adapter version a tenant's name stands for."""

from dataclasses import dataclass
from typing import Protocol

from loraplex_adapters.errors import NameTaken, UnknownName


@dataclass(frozen=True, slots=True)
class RegisteredAdapter:
    """A tenant's name for a version."""

    tenant: str
    name: str
    version: str


class Registry(Protocol):
    """Names live in their tenant's namespace: another tenant's name is an unknown name."""

    async def add(self, tenant: str, name: str, version: str) -> RegisteredAdapter:
        """Give a version a new name; raises NameTaken."""
        ...

    async def get(self, tenant: str, name: str) -> RegisteredAdapter:
        """Raises UnknownName."""
        ...

    async def list(self, tenant: str) -> list[RegisteredAdapter]:
        """A tenant's adapters in order of their names."""
        ...

    async def remove(self, tenant: str, name: str) -> RegisteredAdapter:
        """Take a name away, and say what it stood for; raises UnknownName."""
        ...

    async def is_used(self, version: str) -> bool:
        """Whether any tenant has a name for this version."""
        ...


class InMemoryRegistry:
    """The twin of the database's registry."""

    def __init__(self) -> None:
        self._adapters: dict[tuple[str, str], RegisteredAdapter] = {}

    async def add(self, tenant: str, name: str, version: str) -> RegisteredAdapter:
        if (tenant, name) in self._adapters:
            raise NameTaken(f"{name!r} exists", name=name)
        adapter = RegisteredAdapter(tenant, name, version)
        self._adapters[tenant, name] = adapter
        return adapter

    async def get(self, tenant: str, name: str) -> RegisteredAdapter:
        if (tenant, name) not in self._adapters:
            raise UnknownName(f"{name!r} does not exist", name=name)
        return self._adapters[tenant, name]

    async def list(self, tenant: str) -> list[RegisteredAdapter]:
        own = [adapter for adapter in self._adapters.values() if adapter.tenant == tenant]
        return sorted(own, key=lambda adapter: adapter.name)

    async def remove(self, tenant: str, name: str) -> RegisteredAdapter:
        adapter = await self.get(tenant, name)
        del self._adapters[tenant, name]
        return adapter

    async def is_used(self, version: str) -> bool:
        return any(adapter.version == version for adapter in self._adapters.values())
