"""People, their one-time links and their sessions."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import SECRET, Audited, Base, PerhapsTenantOwned, Revised


class Person(PerhapsTenantOwned, Audited, Revised, Base):
    """One of the platform's staff, or of a tenant's people."""

    __tablename__ = "person"
    __table_args__ = (Index("ix_person_tenant_id", "tenant_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)  # lower case
    name: Mapped[str]
    role: Mapped[str]  # kit.principal.Role
    state: Mapped[str]  # people.schemas.PersonState
    password_hash: Mapped[str | None] = mapped_column(info=SECRET)  # Argon2id
    created_at: Mapped[datetime]


class OneTimeLink(PerhapsTenantOwned, Audited, Revised, Base):
    """Lets its holder set a person's password, once."""

    __tablename__ = "one_time_link"
    __table_args__ = (
        Index("ix_one_time_link_tenant_id", "tenant_id"),
        Index("ix_one_time_link_person_id", "person_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    person_id: Mapped[str] = mapped_column(ForeignKey("person.id"))
    purpose: Mapped[str]  # people.schemas.Purpose
    digest: Mapped[str] = mapped_column(info=SECRET)
    pepper_id: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class LoginSession(PerhapsTenantOwned, Audited, Base):
    """A person's browser, known by the hash of its cookie."""

    __tablename__ = "login_session"
    __table_args__ = (
        Index("ix_login_session_tenant_id", "tenant_id"),
        Index("ix_login_session_person_id", "person_id"),
        Index("ix_login_session_expires_at", "expires_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    person_id: Mapped[str] = mapped_column(ForeignKey("person.id"))
    digest: Mapped[str] = mapped_column(unique=True, info=SECRET)  # SHA-256 of the token
    address: Mapped[str | None]
    created_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]  # to the minute
    expires_at: Mapped[datetime]
