"""API keys."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base, TenantOwned


class ApiKey(TenantOwned, Base):
    """A key's hash; the secret itself is nowhere."""

    __tablename__ = "api_key"
    __table_args__ = (Index("ix_api_key_tenant_id", "tenant_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)  # the public part of the key
    project_id: Mapped[str] = mapped_column(ForeignKey("project.id"))
    name: Mapped[str]
    digest: Mapped[str]  # hex HMAC-SHA-256 of the secret
    pepper_id: Mapped[str]  # which of the installation's secrets made it
    last_four: Mapped[str]
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
