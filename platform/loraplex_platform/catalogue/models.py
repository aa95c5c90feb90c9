"""Adapters: names per tenant, pointing at versions by content hash."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Audited, Base, Revised, TenantOwned


class Adapter(TenantOwned, Base):
    """A version of a name: `support@2` is the name's second; a removed one stays as a tombstone."""

    __tablename__ = "adapter"
    __table_args__ = (
        Index(
            "uq_adapter_tenant_id_name_number",
            "tenant_id",
            "name",
            "number",
            unique=True,
            sqlite_where=text("removed_at IS NULL"),
            postgresql_where=text("removed_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    number: Mapped[int] = mapped_column(default=1)
    version: Mapped[str]  # sha256 of the canonical content
    rank: Mapped[int]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    manifest: Mapped[dict[str, Any]]  # the load report
    parity: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]


class AdapterName(TenantOwned, Audited, Revised, Base):
    """A name in a tenant's namespace: which of its versions answers, and with which defaults."""

    __tablename__ = "adapter_name"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True, sort_order=-1)
    name: Mapped[str] = mapped_column(primary_key=True)
    current: Mapped[int]  # the number that the bare name stands for
    previous: Mapped[int | None]  # what it stood for before: where a rollback goes
    canary: Mapped[int | None]
    canary_percent: Mapped[int | None]
    last_number: Mapped[int]
    is_enabled: Mapped[bool]
    is_pinned: Mapped[bool]
    defaults: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
