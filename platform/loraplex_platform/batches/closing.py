"""The end of a job: what did not run is given up, what did is written into files."""

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import IO, Any, NamedTuple

from loraplex_platform.batches.line_repository import LineRepository, State
from loraplex_platform.batches.models import Batch, BatchLine
from loraplex_platform.batches.outcomes import error_json
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.batches.schemas import Status
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import BatchEvent, EventType
from loraplex_platform.events.outbox import emit
from loraplex_platform.files.models import StoredFile
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.files.service import BATCH_FILE_LIFE, CHUNK_BYTES, FileService
from loraplex_platform.kit.clock import Clock

GRACE = timedelta(minutes=5)  # for lines at work when their job is cancelled or expires
EVENTS: dict[Status, EventType] = {
    "completed": "batch.completed",
    "cancelled": "batch.cancelled",
    "expired": "batch.expired",
}
GIVEN_UP = {
    "cancelled": error_json("batch_cancelled", "This request was cancelled with its batch."),
    "expired": error_json(
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
}


class Draft(NamedTuple):
    """A file in the making."""

    id: str
    filename: str
    content: IO[bytes]


class Closing:
    def __init__(
        self, database: Database, files: FileService, clock: Clock, lease_s: float
    ) -> None:
        self._database = database
        self._files = files
        self._clock = clock
        self._lease = timedelta(seconds=lease_s)

    async def close(self, batch: Batch) -> None:
        """Takes a job that is leased to its end, unless lines of it still run."""
        if await self._give_up(batch):
            await self._write_files(batch)

    async def _give_up(self, batch: Batch) -> bool:
        """Whether no line runs any more; those that never ran have got their final state."""
        now = self._clock.now()
        since = batch.cancelling_at or batch.finalizing_at or now
        state: State = "cancelled" if batch.status == "cancelling" else "expired"
        states: list[State] = ["pending"] if now < since + GRACE else ["pending", "leased"]
        async with self._database.unit_of_work() as session:
            lines, batches = LineRepository(session), BatchRepository(session)
            await lines.give_up(batch.id, states, state)
            counts = await lines.count_by_state(batch.id)
            done, running = counts.get("done", 0), counts.get("leased", 0)
            values: dict[str, Any] = {
                "total": sum(counts.values()) if batch.in_progress_at else 0,
                "completed": done,
                "failed": sum(counts.values()) - done - running if batch.in_progress_at else 0,
                "running": running,
                "lease_until": now + self._lease,
            }
            if batch.status == "in_progress":
                values |= {"status": "finalizing", "finalizing_at": now}
            if not await batches.change(batch, values):
                raise LeaseLost(batch.id)
        return running == 0

    async def _write_files(self, batch: Batch) -> None:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            drafts = [
                Draft(_file_id(batch, kind), f"{batch.id}_{kind}.jsonl", content)
                for kind, content in (("output", output), ("error", errors))
            ]
            has_expired = False
            after = 0
            while lines := await self._next_lines(batch, after):
                after = lines[-1].line_no
                has_expired |= any(line.state == "expired" for line in lines)
                await asyncio.to_thread(_append, drafts, batch, lines)
            written = [draft for draft in drafts if draft.content.tell()]
            sizes = [
                await asyncio.to_thread(self._files.write, draft.id, _chunks(draft.content))
                for draft in written
            ]
        await self._publish(batch, dict(zip(written, sizes, strict=True)), has_expired)

    async def _next_lines(self, batch: Batch, after: int) -> Sequence[BatchLine]:
        """Renews the lease, too: files may be long."""
        async with self._database.unit_of_work() as session:
            lease = {"lease_until": self._clock.now() + self._lease}
            if not await BatchRepository(session).change(batch, lease):
                raise LeaseLost(batch.id)
            if batch.in_progress_at is None:  # cancelled before its lines were all read
                return []
            return await LineRepository(session).next_in_order(batch.id, after)

    async def _publish(self, batch: Batch, files: dict[Draft, int], has_expired: bool) -> None:
        """Files and status appear in one transaction; the lines are not needed any more."""
        now = self._clock.now()
        status: Status = "completed"
        if batch.status == "cancelling":
            status = "cancelled"
        elif has_expired:
            status = "expired"
        ids = {draft.id for draft in files}
        output, errors = _file_id(batch, "output"), _file_id(batch, "error")
        values: dict[str, Any] = {
            "status": status,
            f"{status}_at": now,
            "output_file_id": output if output in ids else None,
            "error_file_id": errors if errors in ids else None,
            "enqueued_tokens": 0,
        }
        async with self._database.unit_of_work() as session:
            await LineRepository(session).remove(batch.id)
            if not await BatchRepository(session).change(batch, values):
                raise LeaseLost(batch.id)
            repository = FileRepository(session)
            for draft, num_bytes in files.items():
                await repository.add(_row(batch, draft, num_bytes, now))
            await repository.hold(batch.input_file_id, -1)
            await emit(session, batch.tenant_id, EVENTS[status], BatchEvent(batch.id), now)


class LeaseLost(Exception):
    """Another process closes this job; carries its id."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"the lease on {batch_id} is lost")
        self.batch_id = batch_id


def result_json(batch_id: str, line: BatchLine) -> str:
    """A line of the output or error file; what is stored as JSON is not parsed again."""
    response, error = "null", "null"
    if line.state in GIVEN_UP:
        error = GIVEN_UP[line.state]
    elif line.status_code is None:
        error = line.result or "null"
    else:
        head = json.dumps({"status_code": line.status_code, "request_id": line.result_id})
        response = f'{head[:-1]}, "body": {line.result}}}'
    name = {
        "id": f"batch_req_{batch_id.removeprefix('batch_')}_{line.line_no}",
        "custom_id": line.custom_id,
    }
    return f'{json.dumps(name)[:-1]}, "response": {response}, "error": {error}}}'


def _append(drafts: Sequence[Draft], batch: Batch, lines: Sequence[BatchLine]) -> None:
    output, errors = drafts
    for line in lines:
        draft = output if line.state == "done" else errors
        draft.content.write(result_json(batch.id, line).encode() + b"\n")


def _chunks(content: IO[bytes]) -> Iterator[bytes]:
    content.seek(0)
    while chunk := content.read(CHUNK_BYTES):
        yield chunk


def _file_id(batch: Batch, kind: str) -> str:
    """The same for every try, so that the last one's content is what stays."""
    return f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:32]}"


def _row(batch: Batch, draft: Draft, num_bytes: int, now: datetime) -> StoredFile:
    life = (
        BATCH_FILE_LIFE if batch.output_life_s is None else timedelta(seconds=batch.output_life_s)
    )
    return StoredFile(
        id=draft.id,
        tenant_id=batch.tenant_id,
        project_id=batch.project_id,
        filename=draft.filename,
        purpose="batch_output",
        num_bytes=num_bytes,
        created_at=now,
        ready_at=now,
        expires_at=now + life,
        holds=0,
    )
