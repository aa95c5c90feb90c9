"""Facts: usage events, and the sums that are made of them alone."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base, TenantOwned


class UsageEvent(TenantOwned, Base):
    """One row for each request that reached the engine's door, written when it ended."""

    __tablename__ = "usage_event"
    __table_args__ = (
        Index("ix_usage_event_tenant_id_ended_at", "tenant_id", "ended_at"),
        Index("ix_usage_event_ended_at", "ended_at"),
        Index("ix_usage_event_tenant_id_started_at", "tenant_id", "started_at", "request_id"),
        Index("ix_usage_event_started_at", "started_at", "request_id"),
    )

    request_id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    key_id: Mapped[str]
    endpoint: Mapped[str]
    model: Mapped[str]  # as the client named it
    base_model: Mapped[str]
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
    discarded_tokens: Mapped[int] = mapped_column(
        BigInteger, default=0
    )  # of attempts that were lost
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime]
    queue_s: Mapped[float | None]
    ttft_s: Mapped[float | None]
    total_s: Mapped[float]
    engine_s: Mapped[float]
    region: Mapped[str]
    delivered: Mapped[bool]  # whether the client got any of it, or left of its own accord
    job_id: Mapped[str | None]
    end_user: Mapped[str | None]
    client_request_id: Mapped[str | None]
    request_metadata: Mapped[dict[str, Any] | None]


class UsageSums:
    """Events of one kind that started within one bucket; made of events, and remade at will."""

    bucket: Mapped[datetime] = mapped_column(primary_key=True)  # its first moment
    project_id: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    base_model: Mapped[str] = mapped_column(primary_key=True)
    adapter: Mapped[str] = mapped_column(primary_key=True)  # version, or usage.prices.BASE
    tier: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    failed_requests: Mapped[int] = mapped_column(BigInteger)
    uncached_prompt_tokens: Mapped[int] = mapped_column(BigInteger)  # these three are paid for
    cached_prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    unbilled_tokens: Mapped[int] = mapped_column(BigInteger)  # of requests that failed
    recomputed_tokens: Mapped[int] = mapped_column(BigInteger)  # the platform's cost
    generated_tokens: Mapped[int] = mapped_column(BigInteger)  # completions, whoever pays for them


class UsageQuarter(UsageSums, TenantOwned, Base):
    """Quarter hours: hours, days and months of every zone are sums of them."""

    __tablename__ = "usage_quarter"
    __table_args__ = (Index("ix_usage_quarter_bucket", "bucket"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)


class UsageMinute(UsageSums, TenantOwned, Base):
    """Minutes, kept for two days."""

    __tablename__ = "usage_minute"
    __table_args__ = (Index("ix_usage_minute_bucket", "bucket"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)


class LatencyMinute(TenantOwned, Base):
    """How many requests of a minute took about this long; kept for two days."""

    __tablename__ = "latency_minute"
    __table_args__ = (Index("ix_latency_minute_bucket", "bucket"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    bucket: Mapped[datetime] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    measure: Mapped[str] = mapped_column(primary_key=True)  # usage.rollups.Measure
    bin: Mapped[int] = mapped_column(primary_key=True)  # index into usage.rollups.BIN_EDGES_S
    count: Mapped[int] = mapped_column(BigInteger)


class LostWork(TenantOwned, Base):
    """What an engine made for a batch line whose lease had gone to another: the platform's cost."""

    __tablename__ = "lost_work"
    __table_args__ = (Index("ix_lost_work_at", "at"),)

    id: Mapped[str] = mapped_column(primary_key=True)  # of the try
    at: Mapped[datetime]
    completion_tokens: Mapped[int] = mapped_column(BigInteger)


class EngineCount(TenantOwned, Base):
    """What an engine last said that it had made for a tenant; it stays when the engine is gone."""

    __tablename__ = "engine_count"

    tenant_id: Mapped[str] = mapped_column(
        primary_key=True
    )  # as the engine was told: no foreign key
    engine_id: Mapped[str] = mapped_column(primary_key=True)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    open_tokens: Mapped[int] = mapped_column(BigInteger)  # of these, in sequences not finished then
    seen_at: Mapped[datetime]
