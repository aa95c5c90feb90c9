"""API keys of tenants, and admin keys."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import (
    SECRET,
    Audited,
    Base,
    PerhapsTenantOwned,
    Revised,
    TenantOwned,
)


class ApiKey(TenantOwned, Audited, Revised, Base):
    """A key's hash; the secret itself is nowhere."""

    __tablename__ = "api_key"
    __table_args__ = (Index("ix_api_key_tenant_id", "tenant_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)  # the public part of the key
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    service_account_id: Mapped[str | None] = mapped_column(ForeignKey("service_account.id"))
    name: Mapped[str]
    digest: Mapped[str] = mapped_column(info=SECRET)  # hex HMAC-SHA-256 of the secret
    pepper_id: Mapped[str]  # which of the installation's secrets made it
    last_four: Mapped[str]
    previous_digest: Mapped[str | None] = mapped_column(info=SECRET)  # until the grace is over
    previous_pepper_id: Mapped[str | None]
    previous_until: Mapped[datetime | None]
    scopes: Mapped[list[str]]
    allowed_models: Mapped[list[str] | None]
    allowed_networks: Mapped[list[str] | None]  # CIDR
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class KeyUse(TenantOwned, Base):
    """When a key was last used; apart from the key, whose revision it does not change."""

    __tablename__ = "key_use"
    __table_args__ = (Index("ix_key_use_tenant_id", "tenant_id"),)

    key_id: Mapped[str] = mapped_column(ForeignKey("api_key.id"), primary_key=True)
    last_used_at: Mapped[datetime]


class AdminKey(PerhapsTenantOwned, Audited, Revised, Base):
    """A key of the administration's realm: the platform's, or one tenant's."""

    __tablename__ = "admin_key"
    __table_args__ = (Index("ix_admin_key_tenant_id", "tenant_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    role: Mapped[str]  # kit.principal.Role
    digest: Mapped[str] = mapped_column(info=SECRET)
    pepper_id: Mapped[str]
    last_four: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
