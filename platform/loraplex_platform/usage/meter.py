"""Writes what happened, once."""

import asyncio
from dataclasses import asdict
from typing import Protocol

import structlog
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.database import Database
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.models import UsageEvent
from loraplex_platform.usage.repository import UsageRepository

log = structlog.get_logger(__name__)
RETRY_S = (0.1, 0.5, 2.0)  # a database that restarts is back by then


class Recorder(Protocol):
    """Told once what happened to a request."""

    async def record(self, facts: UsageFacts) -> None: ...


class Meter:
    """The one writer of usage events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, facts: UsageFacts) -> None:
        """One transaction; writing the same request again changes nothing."""
        for pause_s in RETRY_S:
            try:
                return await self._write_once(facts)
            except OperationalError:
                log.warning("usage_write_delayed", usage_request_id=facts.request_id)
                await asyncio.sleep(pause_s)
        await self._write_once(facts)

    async def write(self, session: AsyncSession, facts: UsageFacts) -> None:
        """The same within the caller's transaction, who knows that it is the first time."""
        await UsageRepository(session).add(UsageEvent(**asdict(facts)))

    async def _write_once(self, facts: UsageFacts) -> None:
        try:
            async with self._database.unit_of_work() as session:
                await self.write(session, facts)
        except IntegrityError:
            async with self._database.reading() as session:
                if not await UsageRepository(session).exists(facts.request_id):
                    raise
