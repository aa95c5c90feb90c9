"""Tenants and their projects."""

from datetime import datetime

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, synonym

from loraplex_platform.db.base import Base, TenantOwned


class Tenant(TenantOwned, Base):
    """A customer of the platform, with its standing in the scheduler."""

    __tablename__ = "tenant"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float] = mapped_column(default=1.0)
    max_tier: Mapped[str] = mapped_column(default="interactive")
    max_running: Mapped[int | None]  # soft cap, sequences
    kv_share: Mapped[float | None]  # soft cap, part of all blocks, 0..1
    created_at: Mapped[datetime]

    tenant_id: Mapped[str] = synonym("id")  # a tenant owns itself: `for_tenant` finds it


class Project(TenantOwned, Base):
    """A tenant's project; `default` is made with the tenant."""

    __tablename__ = "project"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_at: Mapped[datetime]
