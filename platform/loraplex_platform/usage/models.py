"""Usage events: what happened, without money."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base, TenantOwned


class UsageEvent(TenantOwned, Base):
    """One row for each request that reached the engine's door, written when it ended."""

    __tablename__ = "usage_event"
    __table_args__ = (
        Index("ix_usage_event_tenant_id_ended_at", "tenant_id", "ended_at"),
        Index("ix_usage_event_ended_at", "ended_at"),
    )

    request_id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    key_id: Mapped[str]
    endpoint: Mapped[str]
    model: Mapped[str]  # as the client named it
    adapter_version: Mapped[str | None]  # None: the base model
    tier: Mapped[str]  # the tier used
    outcome: Mapped[str]  # usage.facts.Outcome
    error_code: Mapped[str | None]
    sequences: Mapped[int]
    attempts: Mapped[int]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)  # part of the prompt tokens
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    recomputed_tokens: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    queue_s: Mapped[float | None]
    ttft_s: Mapped[float | None]
    total_s: Mapped[float]
    engine_s: Mapped[float]
    region: Mapped[str]
    job_id: Mapped[str | None]
    end_user: Mapped[str | None]
    client_request_id: Mapped[str | None]
    request_metadata: Mapped[dict[str, Any] | None]
