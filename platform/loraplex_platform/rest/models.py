"""Requests that carried an Idempotency-Key, and their sealed answers."""

from datetime import datetime

from sqlalchemy import Index, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base


class IdempotentRequest(Base):
    """The answer may hold a secret that is shown once, so it is stored encrypted."""

    __tablename__ = "idempotent_request"
    __table_args__ = (Index("ix_idempotent_request_started_at", "started_at"),)

    caller_id: Mapped[str] = mapped_column(primary_key=True)
    route: Mapped[str] = mapped_column(primary_key=True)  # method and path
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]  # SHA-256 of the query and the body
    started_at: Mapped[datetime]
    status: Mapped[int | None]  # None: still running
    headers: Mapped[list[str] | None]  # «name: value»
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
