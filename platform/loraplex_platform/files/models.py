"""Uploaded files and those that jobs write."""

from datetime import datetime

from sqlalchemy import BigInteger, Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base, TenantOwned


class StoredFile(TenantOwned, Base):
    """A file's row; its content is the blob at `key`. Rows of deleted files wait for their holders."""

    __tablename__ = "file"
    __table_args__ = (
        Index("ix_file_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
        Index("ix_file_expires_at", "expires_at"),
        Index("ix_file_deleted_at", "deleted_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    filename: Mapped[str]  # as the client calls it; no path is ever made of it
    purpose: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    ready_at: Mapped[datetime | None]  # when the content was whole
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    holds: Mapped[int]  # jobs that still read it

    @property
    def key(self) -> str:
        return key_of(self.id)


def key_of(file_id: str) -> str:
    """Where a file's content lies in the blob store."""
    return f"{file_id[-2:]}/{file_id}"
