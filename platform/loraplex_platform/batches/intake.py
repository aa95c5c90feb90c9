"""Turns an input file into lines that can run, or says what is wrong with it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

from loraplex_platform.admission.effective import EffectiveLimits
from loraplex_platform.admission.limits import ENQUEUED_BATCH_TOKENS, Limit
from loraplex_platform.batches.input_file import InputLine, LineError, read_lines
from loraplex_platform.batches.line_repository import LineRepository
from loraplex_platform.batches.models import Batch
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.batches.rights import principal_of
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import BatchEvent
from loraplex_platform.events.outbox import emit
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.files.service import FileService
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import PlatformError
from loraplex_platform.openai.parameters import Parameters
from loraplex_platform.openai.resolver import Resolver

LINES_AT_ONCE = 500
MAX_ERRORS = 100


class Intake:
    def __init__(
        self,
        database: Database,
        files: FileService,
        resolver: Resolver,
        limits: EffectiveLimits,
        clock: Clock,
        lease_s: float,
    ) -> None:
        self._database = database
        self._files = files
        self._resolver = resolver
        self._limits = limits
        self._clock = clock
        self._lease = timedelta(seconds=lease_s)

    async def validate(self, batch: Batch) -> None:
        """Reads the file of a job that is leased; stops when the lease or its status is lost."""
        if not await self._start_over(batch):
            return
        reading = _Reading(batch, self._resolver)
        file = await asyncio.to_thread(self._files.open_held, batch.input_file_id)
        with file:
            found = read_lines(file, batch.endpoint)
            while chunk := await asyncio.to_thread(lambda: list(islice(found, LINES_AT_ONCE))):
                good = await reading.check(chunk)
                if not await self._keep(batch, good) or len(reading.errors) >= MAX_ERRORS:
                    break
        if not reading.errors:
            await self._admit(batch, reading)
        if reading.errors:
            await self._refuse(batch, reading.errors[:MAX_ERRORS])

    async def _start_over(self, batch: Batch) -> bool:
        """Forget the lines of a try that was cut short; False when the lease is lost."""
        async with self._database.unit_of_work() as session:
            is_ours = await BatchRepository(session).change(
                batch, self._renewed(), status="validating"
            )
            if is_ours:
                await LineRepository(session).remove(batch.id)
        return is_ours

    async def _keep(self, batch: Batch, lines: Sequence[InputLine]) -> bool:
        """Write a chunk and renew the lease, in one transaction; False when it is lost."""
        async with self._database.unit_of_work() as session:
            is_ours = await BatchRepository(session).change(
                batch, self._renewed(), status="validating"
            )
            if is_ours and lines:
                await LineRepository(session).add(batch, lines, self._clock.now())
        return is_ours

    def _renewed(self) -> dict[str, Any]:
        return {"lease_until": self._clock.now() + self._lease}

    async def _admit(self, batch: Batch, reading: "_Reading") -> None:
        """The job goes on, unless too much is enqueued already."""
        limits = [
            limit
            for limit in await self._limits.of(principal_of(batch))
            if limit.dimension == ENQUEUED_BATCH_TOKENS
        ]
        async with self._database.unit_of_work() as session:
            batches = BatchRepository(session)
            await batches.lock_tenant(batch.tenant_id)
            for limit in limits:
                used = await _enqueued(batches, batch, limit)
                if used + reading.tokens > limit.value:
                    reading.errors.append(_too_much(batch, limit))
                    return
            await batches.change(batch, self._started(reading), status="validating")

    def _started(self, reading: "_Reading") -> dict[str, Any]:
        return {
            "status": "in_progress",
            "in_progress_at": self._clock.now(),
            "total": reading.num_lines,
            "model": reading.models.pop() if len(reading.models) == 1 else None,
            "enqueued_tokens": reading.tokens,
        }

    async def _refuse(self, batch: Batch, errors: Sequence[LineError]) -> None:
        values: dict[str, Any] = {
            "status": "failed",
            "failed_at": self._clock.now(),
            "errors": [error.to_json() for error in errors],
        }
        async with self._database.unit_of_work() as session:
            if await BatchRepository(session).change(batch, values, status="validating"):
                await LineRepository(session).remove(batch.id)
                await FileRepository(session).hold(batch.input_file_id, -1)
                event = BatchEvent(batch.id)
                await emit(session, batch.tenant_id, "batch.failed", event, values["failed_at"])


class _Reading:
    """What is known of a file so far."""

    def __init__(self, batch: Batch, resolver: Resolver) -> None:
        self._principal = principal_of(batch)
        self._resolver = resolver
        self._ids: set[int] = set()  # hashes: 50,000 ids of any length in little memory
        self._verdicts: dict[str, PlatformError | None] = {}
        self.models: set[str] = set()
        self.num_lines = 0
        self.tokens = 0
        self.errors: list[LineError] = []

    async def check(self, chunk: Sequence[InputLine | LineError]) -> list[InputLine]:
        """The lines to keep: none any more once something is wrong."""
        for line in chunk:
            fault = line if isinstance(line, LineError) else await self._fault_of(line)
            if fault is not None:
                self.errors.append(fault)
        if self.errors:
            return []
        good = [line for line in chunk if isinstance(line, InputLine)]
        self.num_lines += len(good)
        self.tokens += sum(line.tokens for line in good)
        self.models |= {line.model for line in good}
        return good

    async def _fault_of(self, line: InputLine) -> LineError | None:
        identity = hash(line.custom_id)
        if identity in self._ids:
            message = f"The custom_id '{line.custom_id}' is used more than once."
            return LineError("duplicate_custom_id", message, "custom_id", line.line_no)
        self._ids.add(identity)
        if line.model not in self._verdicts:
            self._verdicts[line.model] = await self._verdict(line.model)
        refusal = self._verdicts[line.model]
        if refusal is None:
            return None
        code = refusal.code or "invalid_value"
        return LineError(code, refusal.message, "body.model", line.line_no)

    async def _verdict(self, model: str) -> PlatformError | None:
        """Why the principal may not use this model; None when it may."""
        try:
            await self._resolver.resolve(
                self._principal, Parameters(model=model, service_tier="flex")
            )
        except PlatformError as error:
            return error
        return None


async def _enqueued(batches: BatchRepository, batch: Batch, limit: Limit) -> int:
    return await batches.enqueued_tokens(
        batch.tenant_id,
        limit.subject if limit.level == "project" else None,
        limit.subject if limit.level == "key" else None,
    )


def _too_much(batch: Batch, limit: Limit) -> LineError:
    message = (
        f"Enqueued token limit reached for this {limit.level}. Limit: {limit.value} enqueued "
        "tokens. Please try again once some in_progress batches have been completed."
    )
    return LineError("token_limit_exceeded", message, None, None)
