"""Word of changes: whose rows are not what was read of them a moment ago."""

from typing import Protocol


class Listener(Protocol):
    """Told that rows of these tenants changed; None: rows that are no tenant's, such as plans."""

    def __call__(self, tenants: frozenset[str | None]) -> None: ...


class News:
    """Within one process. It may be late or lost: what is remembered ends by its age as well."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def hear(self, tenants: frozenset[str | None]) -> None:
        for listener in self._listeners:
            listener(tenants)

    async def tell(self, tenants: frozenset[str | None]) -> None:
        """A change is committed."""
        self.hear(tenants)

    async def run(self) -> None:
        """Until cancelled, where there is something to wait for."""

    async def close(self) -> None:
        """Nothing is told or heard any more."""
