"""Statements on the audit log: it is only read here, `audit.trail` alone writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.db.scope import visible_to
from loraplex_platform.kit.principal import Administrator


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which events to show; None does not filter."""

    tenant_id: str | None = None
    actor_id: str | None = None
    object_type: str | None = None
    object_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class AuditRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def page(
        self, by: Administrator, wanted: AuditFilter, after: str | None, limit: int
    ) -> Sequence[AuditEvent]:
        """Newest first."""
        statement = visible_to(by, AuditEvent)
        for name in ("tenant_id", "actor_id", "object_type", "object_id"):
            value = getattr(wanted, name)
            if value is not None:
                statement = statement.where(getattr(AuditEvent, name) == value)
        if wanted.since is not None:
            statement = statement.where(AuditEvent.at >= wanted.since)
        if wanted.until is not None:
            statement = statement.where(AuditEvent.at < wanted.until)
        if after is not None:
            statement = statement.where(AuditEvent.id < after)
        statement = statement.order_by(AuditEvent.id.desc()).limit(limit)
        return (await self._session.scalars(statement)).all()
