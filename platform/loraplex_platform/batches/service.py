"""Rules about batch jobs: what a client may do with its own, and an operator with all."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from loraplex_platform.audit.trail import note
from loraplex_platform.batches.models import Batch
from loraplex_platform.batches.repository import BatchFilter, BatchRepository
from loraplex_platform.batches.rights import rights_of
from loraplex_platform.batches.schemas import FINAL, BatchObject, BatchQuery, CreateBatch
from loraplex_platform.db.database import Database
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.files.service import no_such_file
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import (
    Conflict,
    InvalidRequest,
    KeyReused,
    NotFound,
    RateLimited,
)
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.kit.principal import (
    COMMAND_LINE,
    Actor,
    Administrator,
    Principal,
    key_actor,
)

CREATES_PER_HOUR, HOUR = 2000, timedelta(hours=1)  # of a tenant
WINDOWS = {"24h": timedelta(hours=24)}


class Bell(Protocol):
    """Tells dispatchers that there is work; they find it without, only later."""

    def start(self) -> None: ...

    def ring(self, batch_id: str) -> None: ...

    async def stop(self, grace_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is, for people."""

    batch_id: str
    tenant_id: str
    status: str
    is_paused: bool
    created_at: datetime
    total: int
    completed: int
    failed: int
    running: int
    tokens: int
    lines_per_s: float
    ends_at: datetime | None  # None: nobody knows


class BatchService:
    def __init__(self, database: Database, bell: Bell | None, clock: Clock) -> None:
        self._database = database
        self._bell = bell
        self._clock = clock

    async def create(
        self,
        principal: Principal,
        order: CreateBatch,
        idempotency_key: str | None = None,
        *,
        by: Actor | None = None,
    ) -> BatchObject:
        """A job in `validating`; its lines are read off the request's path.

        The same order with the same key is the same job, however often it is given.
        """
        batch = self._ordered(principal, order, idempotency_key)
        async with self._database.unit_of_work(principal) as session:
            batches = BatchRepository(session)
            await batches.lock_tenant(principal.tenant_id)
            if idempotency_key is not None:
                known = await batches.known_as(principal, idempotency_key)
                if known is not None:
                    return _again(known, batch)
            await self._check_pace(batches, principal)
            await _hold_input(FileRepository(session), principal, order.input_file_id)
            await batches.add(batch)
            facts = {"input_file_id": order.input_file_id, "endpoint": order.endpoint}
            note(session, batch, "created", by or key_actor(principal), self._clock, facts)
        self._ring(batch.id)
        return BatchObject.of(batch)

    def _ordered(
        self, principal: Principal, order: CreateBatch, idempotency_key: str | None
    ) -> Batch:
        now = self._clock.now()
        return Batch(
            id=new_id("batch"),
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            rights=rights_of(principal),
            status="validating",
            endpoint=order.endpoint,
            completion_window=order.completion_window,
            input_file_id=order.input_file_id,
            output_life_s=order.output_expires_after and order.output_expires_after.seconds,
            request_metadata=order.metadata,
            priority=order.priority,
            idempotency_key=idempotency_key,
            created_at=now,
            expires_at=now + WINDOWS[order.completion_window],
            **dict.fromkeys(COUNTERS, 0),
        )

    async def _check_pace(self, batches: BatchRepository, principal: Principal) -> None:
        first = await batches.nth_newest(principal, CREATES_PER_HOUR)
        now = self._clock.now()
        if first is not None and first.created_at + HOUR > now:
            raise RateLimited(
                f"Rate limit reached: {CREATES_PER_HOUR} batches an hour.",
                retry_after_s=(first.created_at + HOUR - now).total_seconds(),
                dimension="batches",
            )

    async def list(self, principal: Principal, query: BatchQuery) -> Page[BatchObject]:
        async with self._database.reading(principal) as session:
            batches = await BatchRepository(session).page(principal, query)
        return page_of([BatchObject.of(batch) for batch in batches], query.limit)

    async def get(self, principal: Principal, batch_id: str) -> BatchObject:
        async with self._database.reading(principal) as session:
            batch = await BatchRepository(session).get(principal, batch_id)
        if batch is None:
            raise no_such_batch(batch_id)
        return BatchObject.of(batch)

    async def cancel(
        self, principal: Principal, batch_id: str, *, by: Actor | None = None
    ) -> BatchObject:
        """Lines at work may end; cancelling again changes nothing."""
        async with self._database.unit_of_work(principal) as session:
            batches = BatchRepository(session)
            batch = await batches.get(principal, batch_id, to_change=True)
            if batch is None:
                raise no_such_batch(batch_id)
            if batch.status in FINAL and batch.status != "cancelled":
                raise Conflict(
                    f"Cannot cancel a batch with status '{batch.status}'.",
                    param="id",
                    code="batch_not_cancellable",
                )
            if batch.status not in ("cancelling", "cancelled"):
                batch.status = "cancelling"
                batch.cancelling_at = self._clock.now()
                note(session, batch, "cancelled", by or key_actor(principal), self._clock)
        self._ring(batch.id)
        return BatchObject.of(batch)

    async def pause(self, batch_id: str, *, by: Administrator = COMMAND_LINE) -> None:
        """No more lines are started; the window goes on."""
        await self._pause(batch_id, self._clock.now(), by)

    async def resume(self, batch_id: str, *, by: Administrator = COMMAND_LINE) -> None:
        await self._pause(batch_id, None, by)

    async def progress(self, tenant_id: str | None = None, limit: int = 100) -> Sequence[Progress]:
        """The newest jobs of a tenant, or of all."""
        return await self.seen(COMMAND_LINE, BatchFilter(tenant_id), limit=limit)

    async def seen(
        self,
        by: Administrator,
        wanted: BatchFilter,
        *,
        order: str = "",
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Progress]:
        """Jobs that the administrator may see, the newest first unless `order` says otherwise."""
        async with self._database.reading(by) as session:
            batches = await BatchRepository(session).seen(by, wanted, order, after, limit)
        return progress_of(batches, self._clock.now())

    async def find(self, by: Administrator, batch_id: str) -> tuple[BatchObject, Progress]:
        async with self._database.reading(by) as session:
            batch = await BatchRepository(session).any_of(batch_id)
        if batch is None or not by.sees(batch.tenant_id):
            raise no_such_batch(batch_id)
        return BatchObject.of(batch), _progress(batch, self._clock.now())

    async def _pause(self, batch_id: str, at: datetime | None, by: Administrator) -> None:
        async with self._database.unit_of_work(by) as session:
            batches = BatchRepository(session)
            batch = await batches.any_of(batch_id)
            if batch is None or not by.sees(batch.tenant_id):
                raise no_such_batch(batch_id)
            await batches.pause(batch_id, at)
            note(session, batch, "resumed" if at is None else "paused", by.actor, self._clock)
        self._ring(batch_id)

    def _ring(self, batch_id: str) -> None:
        if self._bell is not None:
            self._bell.ring(batch_id)


async def _hold_input(files: FileRepository, principal: Principal, file_id: str) -> None:
    """The file stays until the job is done with it, even when it is deleted."""
    file = await files.get(principal, file_id, to_change=True)
    if file is None:
        raise no_such_file(file_id, "input_file_id")
    if file.purpose != "batch":
        raise InvalidRequest(
            f"The file's purpose must be 'batch', not '{file.purpose}'.",
            param="input_file_id",
            code="invalid_purpose",
        )
    await files.hold(file.id, 1)


def _again(known: Batch, ordered: Batch) -> BatchObject:
    if any(getattr(known, name) != getattr(ordered, name) for name in ORDER):
        raise KeyReused
    return BatchObject.of(known)


ORDER = (
    "project_id",
    "endpoint",
    "completion_window",
    "input_file_id",
    "output_life_s",
    "request_metadata",
    "priority",
)
PAUSABLE = ("validating", "in_progress")
COUNTERS = (
    "total",
    "completed",
    "failed",
    "running",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "enqueued_tokens",
    "epoch",
)


def no_such_batch(batch_id: str) -> NotFound:
    return NotFound(f"No batch found with id '{batch_id}'.", param="id")


def progress_of(batches: Sequence[Batch], now: datetime) -> Sequence[Progress]:
    return [_progress(batch, now) for batch in batches]


def _progress(batch: Batch, now: datetime) -> Progress:
    done, began = batch.completed + batch.failed, batch.in_progress_at
    until = batch.finalizing_at or batch.cancelling_at or now
    rate = done / s if began and (s := (until - began).total_seconds()) > 0 else 0.0
    is_running = batch.status == "in_progress" and batch.paused_at is None
    left_s = (batch.total - done) / rate if is_running and rate else None
    return Progress(
        batch_id=batch.id,
        tenant_id=batch.tenant_id,
        status=batch.status,
        is_paused=batch.paused_at is not None and batch.status in PAUSABLE,
        created_at=batch.created_at,
        total=batch.total,
        completed=batch.completed,
        failed=batch.failed,
        running=batch.running,
        tokens=batch.input_tokens + batch.output_tokens,
        lines_per_s=rate,
        ends_at=None if left_s is None else now + timedelta(seconds=left_s),
    )
