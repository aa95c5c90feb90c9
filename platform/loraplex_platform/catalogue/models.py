"""Adapters: names per tenant, pointing at versions by content hash."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base, TenantOwned


class Adapter(TenantOwned, Base):
    """A name in a tenant's namespace; a removed one stays as a tombstone."""

    __tablename__ = "adapter"
    __table_args__ = (
        Index(
            "uq_adapter_tenant_id_name",
            "tenant_id",
            "name",
            unique=True,
            sqlite_where=text("removed_at IS NULL"),
            postgresql_where=text("removed_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    version: Mapped[str]  # sha256 of the canonical content
    rank: Mapped[int]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    manifest: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]
