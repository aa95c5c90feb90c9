"""Tenants, their projects and service accounts, and the plans they are on."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, synonym

from loraplex_platform.db.base import Audited, Base, Revised, TenantOwned


class Plan(Audited, Revised, Base):
    """A named bundle of standing and limits that tenants share."""

    __tablename__ = "plan"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float]
    max_tier: Mapped[str]
    max_running: Mapped[int | None]
    kv_share: Mapped[float | None]
    limits: Mapped[dict[str, Any]]  # dimension -> value, for the tenant as a whole
    created_at: Mapped[datetime]


class Tenant(TenantOwned, Audited, Revised, Base):
    """A customer of the platform, with its standing in the scheduler."""

    __tablename__ = "tenant"
    __table_args__ = (
        Index("ix_tenant_state_id", "state", "id"),
        Index("ix_tenant_plan_id_id", "plan_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    state: Mapped[str]  # tenants.schemas.TenantState
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plan.id"))
    weight: Mapped[float | None]  # this and the next three: None is what the plan says
    max_tier: Mapped[str | None]
    max_running: Mapped[int | None]  # soft cap, sequences
    kv_share: Mapped[float | None]  # soft cap, part of all blocks, 0..1
    allowed_models: Mapped[list[str] | None]  # None: all of its own and the base model
    allowed_networks: Mapped[list[str] | None]  # CIDR; None: from anywhere
    allowed_regions: Mapped[list[str] | None]  # where its data may be processed
    retention_days: Mapped[int | None]  # of what it stores; None: until it removes it
    stores_prompts: Mapped[bool] = mapped_column(default=False)  # with their answers
    prefix_tokens: Mapped[int | None]  # of registered prefixes; None: what the plan says
    created_at: Mapped[datetime]
    closed_at: Mapped[datetime | None]  # when its content was erased

    tenant_id: Mapped[str] = synonym("id")  # a tenant owns itself: `for_tenant` finds it


class Project(TenantOwned, Audited, Revised, Base):
    """A tenant's project; `default` is made with the tenant."""

    __tablename__ = "project"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    allowed_models: Mapped[list[str] | None]
    archived_at: Mapped[datetime | None]  # its keys no longer work
    created_at: Mapped[datetime]


class ServiceAccount(TenantOwned, Audited, Revised, Base):
    """A program that owns keys, so that they outlive the person who made them."""

    __tablename__ = "service_account"
    __table_args__ = (
        UniqueConstraint("project_id", "name"),
        Index("ix_service_account_tenant_id", "tenant_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    name: Mapped[str]
    created_at: Mapped[datetime]
