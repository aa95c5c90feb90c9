"""Writes what happened, once: to the spool at once, to the database as soon as it is there."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Literal, Protocol

import structlog
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from loraplex_platform.db.database import Database
from loraplex_platform.usage.books import Books
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.spool import Segment, Spool

log = structlog.get_logger(__name__)
DRAIN_EVERY_S = 1.0
BATCH = 200  # events in one transaction of a drain
DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeout, OSError)
Point = Literal["ended", "spooled", "written", "committed"]


def pass_by(_: Point) -> None:
    """What happens at the named points of the write path: nothing."""


class Recorder(Protocol):
    """Told once what happened to a request."""

    async def record(self, facts: UsageFacts) -> None: ...


class Meter:
    """The one writer of usage events."""

    def __init__(
        self,
        database: Database,
        books: Books,
        spool: Spool,
        at: Callable[[Point], None] = pass_by,
    ) -> None:
        self._database = database
        self._books = books
        self._spool = spool
        self._at = at

    async def record(self, facts: UsageFacts) -> None:
        """Durable on return, and in the database unless that is away; a second time changes nothing.

        A disk that takes no more costs the spool's safety, not the request.
        """
        self._at("ended")
        try:
            segment = await self._spool.append(facts)
        except OSError:
            log.exception("spool_failed", usage_request_id=facts.request_id)
            return await self._write([facts])
        self._at("spooled")
        try:
            await self._write([facts])
        except BaseException as error:
            self._spool.stalled(segment)
            if not isinstance(error, DATABASE_AWAY):
                raise
            log.warning("usage_write_delayed", usage_request_id=facts.request_id)
        else:
            self._at("committed")
            self._spool.written(segment)
        return None

    async def run(self) -> None:
        """Drains from time to time, until it is cancelled."""
        while True:
            with suppress(*DATABASE_AWAY):  # the spool keeps it until the next time
                await self.drain()
            await asyncio.sleep(DRAIN_EVERY_S)

    async def drain(self) -> int:
        """Write what this process, or one that is gone, left in the spool; returns the segments.

        Raises what the database raises while it is away.
        """
        segments = self._spool.leftovers()
        for index, segment in enumerate(segments):
            try:
                await self._write_segment(segment)
            except DATABASE_AWAY:
                for left in segments[index:]:
                    self._spool.let_go(left)
                raise
            self._spool.finish(segment)
        return len(segments)

    def close(self) -> None:
        """What is not in the database stays in the spool."""
        self._spool.close()

    async def _write_segment(self, segment: Segment) -> None:
        for batch in _batches(segment.read()):
            try:
                await self._write(batch)
            except IntegrityError:
                for facts in batch:
                    await self._write_or_set_aside(facts)

    async def _write_or_set_aside(self, facts: UsageFacts) -> None:
        """What the database will never take must not keep the rest from it."""
        try:
            await self._write([facts])
        except IntegrityError:
            log.exception("usage_refused", usage_request_id=facts.request_id)
            await asyncio.to_thread(self._spool.set_aside, facts)

    async def _write(self, facts: Sequence[UsageFacts]) -> None:
        async with self._database.unit_of_work() as session:
            await self._books.post(session, facts)
            self._at("written")


def _batches(lines: Iterator[UsageFacts]) -> Iterator[list[UsageFacts]]:
    while batch := list(islice(lines, BATCH)):
        yield batch
