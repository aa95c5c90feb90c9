"""Prefixes that tenants have named, to be kept warm."""

from datetime import datetime

from sqlalchemy import JSON, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import SECRET, Audited, Base, Content, TenantOwned


class Prefix(TenantOwned, Audited, Content, Base):
    """The beginning of prompts, as tokens of the base model."""

    __tablename__ = "prefix"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    model: Mapped[str]  # the base model's id or an adapter's name; a name may come to mean another
    num_tokens: Mapped[int]
    token_ids: Mapped[list[int]] = mapped_column(JSON, deferred=True, info=SECRET)  # a prompt's
    created_at: Mapped[datetime]
