"""Batch jobs and their lines."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base, Content, TenantOwned

UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")


class Batch(TenantOwned, Content, Base):
    """A job. Its counters change in the same transaction as its lines."""

    aged_by = "expires_at"  # by then it is over

    __tablename__ = "batch"
    __table_args__ = (
        Index("ix_batch_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
        Index("ix_batch_created_at_id", "created_at", "id"),
        Index("ix_batch_status", "status"),
        UniqueConstraint("tenant_id", "idempotency_key"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    key_id: Mapped[str]
    rights: Mapped[dict[str, Any]]  # what the key that made it may do, see batches.rights
    status: Mapped[str]  # batches.schemas.Status
    endpoint: Mapped[str]
    completion_window: Mapped[str]
    model: Mapped[str | None]  # None: its lines name several, or are not read yet
    input_file_id: Mapped[str]
    output_file_id: Mapped[str | None]
    error_file_id: Mapped[str | None]
    output_life_s: Mapped[int | None]
    request_metadata: Mapped[dict[str, Any] | None]
    errors: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    priority: Mapped[int]  # among its tenant's own jobs, higher is sooner
    paused_at: Mapped[datetime | None]  # by the operator
    idempotency_key: Mapped[str | None]  # who creates it again with this key gets this one

    total: Mapped[int]
    completed: Mapped[int]
    failed: Mapped[int]
    running: Mapped[int]  # lines that are leased
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    enqueued_tokens: Mapped[int] = mapped_column(BigInteger)  # of lines that are not done

    created_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    expires_at: Mapped[datetime]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]

    # Who validates or closes the job at this moment.
    epoch: Mapped[int]
    lease_until: Mapped[datetime | None]

    @property
    def pending(self) -> int:
        """Lines that wait for somebody to run them."""
        return self.total - self.completed - self.failed - self.running

    def has_step_due(self, now: datetime) -> bool:
        """Whether it is to be validated or closed; while its lines run, only when it expires."""
        is_running = self.status == "in_progress" and self.expires_at > now
        return self.status in UNFINISHED and not is_running


class BatchLine(TenantOwned, Content, Base):
    """One request of a job, until the job is over."""

    __tablename__ = "batch_line"
    __table_args__ = (
        Index("ix_batch_line_claim", "batch_id", "state", "sort_key", "line_no"),
        Index("ix_batch_line_state_lease_until", "state", "lease_until"),
    )

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    line_no: Mapped[int] = mapped_column(primary_key=True)  # from 1
    custom_id: Mapped[str]
    offset: Mapped[int] = mapped_column(BigInteger)  # of the line in the input file
    num_bytes: Mapped[int]
    sort_key: Mapped[bytes] = mapped_column(LargeBinary)  # equal beginnings stand together
    tokens: Mapped[int]  # estimated, of the prompt

    state: Mapped[str]  # batches.lines.State
    attempts: Mapped[int]  # that the line itself may have failed
    not_before: Mapped[datetime]
    epoch: Mapped[int]  # counts claims: only the last one may write the result
    lease_owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]

    result_id: Mapped[str | None]  # of the request that answered
    status_code: Mapped[int | None]
    result: Mapped[str | None] = mapped_column(Text)  # JSON: a response's body, or an error
