"""How upper layers reach an engine. Imports no torch."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from loraplex_engine.messages import (
    AdapterFailed,
    Command,
    EngineStats,
    Explanation,
    Finished,
    Generate,
    Hello,
    TokenEvent,
)


class EngineClient(Protocol):
    """One engine, reached over an address or in memory."""

    async def start(self) -> None:
        """Connect and keep reconnecting in the background; returns without waiting for the engine."""
        ...

    async def close(self) -> None: ...

    @property
    def hello(self) -> Hello | None:
        """The engine's limits; None until it has spoken, and again while it is away."""
        ...

    @property
    def stats(self) -> EngineStats | None:
        """The latest statistics, or None while the engine is away or silent for over 2 s."""
        ...

    def generate(self, request: Generate) -> AsyncGenerator[TokenEvent | Finished, None]:
        """Events of one sequence; the last is Finished.

        Raises EngineUnavailable when the engine is away or goes away before Finished. Closing the
        generator early aborts the sequence.
        """
        ...

    async def send(self, command: Command) -> None:
        """Send a command that has no answer of its own. Raises EngineUnavailable."""
        ...

    async def explain(self, request_id: str) -> Explanation: ...

    def failures(self) -> AsyncIterator[AdapterFailed]:
        """Adapter versions that could not be loaded, as they are reported."""
        ...
