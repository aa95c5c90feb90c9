"""Whether the parts that a request needs are there."""

from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from loraplex_engine.client import EngineClient
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import current_revision, head_revision

NEED_NOT_BE_OK = ("limiter", "metering")


class Degradable(Protocol):
    """Something that serves, if less well, without its remote half."""

    @property
    def is_degraded(self) -> bool: ...

    async def probe(self) -> None: ...


class Books(Protocol):
    """What is checked once a minute."""

    @property
    def is_drifting(self) -> bool: ...


class Health:
    def __init__(
        self, database: Database, engine: EngineClient, gate: Degradable, books: Books
    ) -> None:
        self._database = database
        self._engine = engine
        self._gate = gate
        self._books = books

    async def checks(self) -> dict[str, str]:
        """Each part's state; all but NEED_NOT_BE_OK must be "ok" for requests to be served."""
        database, migrations = await self._database_checks()
        await self._gate.probe()
        return {
            "database": database,
            "migrations": migrations,
            "engine": self._engine_check(),
            "limiter": "degraded" if self._gate.is_degraded else "ok",  # it serves, by local shares
            "metering": "drift" if self._books.is_drifting else "ok",  # somebody should look
        }

    async def _database_checks(self) -> tuple[str, str]:
        try:
            async with self._database.reading() as session:
                revision = await current_revision(session)
        except SQLAlchemyError:
            return "unreachable", "unknown"
        head = head_revision()
        return "ok", "ok" if revision == head else f"at {revision}, expected {head}"

    def _engine_check(self) -> str:
        if self._engine.hello is None:
            return "away"
        if self._engine.stats is None:
            return "silent"
        return "draining" if self._engine.stats.draining else "ok"
