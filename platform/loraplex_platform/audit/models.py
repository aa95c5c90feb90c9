"""The audit log: append-only, which triggers in the database see to."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base, PerhapsTenantOwned


class AuditEvent(PerhapsTenantOwned, Base):
    """One change of one object: who, what, from where, and what differs."""

    __tablename__ = "audit_event"
    __table_args__ = (Index("ix_audit_event_tenant_id_id", "tenant_id", "id"),)

    # No foreign key: the log outlives what it tells of.
    tenant_id: Mapped[str | None] = mapped_column(sort_order=-1)
    id: Mapped[str] = mapped_column(primary_key=True)  # sorts by time
    at: Mapped[datetime]
    action: Mapped[str]  # for example `api_key.updated`
    object_type: Mapped[str]
    object_id: Mapped[str]
    actor_kind: Mapped[str]
    actor_id: Mapped[str]
    actor_name: Mapped[str]
    request_id: Mapped[str | None]
    address: Mapped[str | None]
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON)  # only what changed
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON)
