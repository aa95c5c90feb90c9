"""Limits as data, and what they turned away."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Audited, Base, Content, RevisedByContent, TenantOwned

BETWEEN = "__"  # in no subject's id and no dimension


class Bound(TenantOwned, Audited, RevisedByContent):
    """What binds one subject of a tenant in one dimension."""

    level: Mapped[str] = mapped_column(primary_key=True)  # admission.limits.Level
    subject: Mapped[str] = mapped_column(primary_key=True)  # the id of the tenant, project or key
    dimension: Mapped[str] = mapped_column(primary_key=True)

    @property
    def id(self) -> str:
        return f"{self.subject}{BETWEEN}{self.dimension}"


class LimitRule(Bound, Base):
    """At most `value` of a dimension for a tenant, or for one of its projects or keys."""

    __tablename__ = "limit_rule"
    __table_args__ = (Index("ix_limit_rule_tenant_id", "tenant_id"),)

    value: Mapped[int] = mapped_column(BigInteger)
    strict: Mapped[bool]
    updated_at: Mapped[datetime]


class LimitOverride(Bound, Base):
    """A value that goes before the rule's and the plan's, until it expires."""

    __tablename__ = "limit_override"
    __table_args__ = (Index("ix_limit_override_tenant_id", "tenant_id"),)

    value: Mapped[int] = mapped_column(BigInteger)
    reason: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]  # None: until it is removed


class RejectionCount(TenantOwned, Content, Base):
    """How many requests of a key one limit turned away within one minute."""

    aged_by = "minute"

    __tablename__ = "rejection_count"
    __table_args__ = (
        Index("ix_rejection_count_tenant_id_minute", "tenant_id", "minute"),
        Index("ix_rejection_count_minute", "minute"),
    )

    minute: Mapped[datetime] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    limit: Mapped[str] = mapped_column(primary_key=True)  # its name: dimension:level:subject
    count: Mapped[int] = mapped_column(BigInteger)


class RejectionSamples(TenantOwned, Content, Base):
    """The last rejections of a key, newest last: so that «why do I get 429?» has an answer."""

    __tablename__ = "rejection_samples"
    __table_args__ = (Index("ix_rejection_samples_tenant_id", "tenant_id"),)

    key_id: Mapped[str] = mapped_column(primary_key=True)
    samples: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
