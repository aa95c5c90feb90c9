"""Prompts and answers of the tenants that asked for them to be kept."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from loraplex_platform.db.base import Base, Content, TenantOwned


class StoredPrompt(TenantOwned, Content, Base):
    """What a request asked and was answered; its usage event has the same id."""

    aged_by = "created_at"

    __tablename__ = "stored_prompt"
    __table_args__ = (
        Index("ix_stored_prompt_tenant_id_project_id", "tenant_id", "project_id", "request_id"),
        Index("ix_stored_prompt_tenant_id_created_at", "tenant_id", "created_at"),
    )

    request_id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str]
    key_id: Mapped[str]
    model: Mapped[str]  # as the client named it
    asked: Mapped[dict[str, Any]]  # `messages`, or `prompt`
    answers: Mapped[list[str]]  # of each choice, as far as it came
    created_at: Mapped[datetime]
