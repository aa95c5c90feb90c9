"""Where tenants want to be told of events, and what is still to be told."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import SECRET, Audited, Base, Content, Revised, TenantOwned


class Webhook(TenantOwned, Audited, Revised, Base):
    """An address that a tenant's events are posted to."""

    __tablename__ = "webhook"
    __table_args__ = (Index("ix_webhook_tenant_id", "tenant_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]
    events: Mapped[list[str]]  # exact types; «*»: all
    sealed_secret: Mapped[bytes] = mapped_column(LargeBinary, info=SECRET)
    is_active: Mapped[bool]
    created_at: Mapped[datetime]


class Delivery(TenantOwned, Content, Base):
    """The outbox: one event for one address, written with the fact and posted afterwards."""

    aged_by = "created_at"

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index("ix_webhook_delivery_tenant_id", "tenant_id"),
        Index("ix_webhook_delivery_webhook_id_id", "webhook_id", "id"),
        Index("ix_webhook_delivery_next_attempt_at", "next_attempt_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # the receiver's key against repeats
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhook.id", ondelete="CASCADE"))
    type: Mapped[str]
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    attempts: Mapped[int]
    next_attempt_at: Mapped[datetime | None]  # None: delivered, or given up
    delivered_at: Mapped[datetime | None]
    last_answer: Mapped[str | None]  # a status, or why there was none
