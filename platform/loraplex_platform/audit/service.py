"""What may be read of the audit log, and its export."""

import json
from collections.abc import AsyncIterator, Sequence

from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.audit.repository import AuditFilter, AuditRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.principal import Administrator

EXPORT_PAGE = 500


class AuditService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, by: Administrator, wanted: AuditFilter, *, after: str | None = None, limit: int = 50
    ) -> Sequence[AuditEvent]:
        async with self._database.reading(by) as session:
            return await AuditRepository(session).page(by, wanted, after, limit)

    async def export(self, by: Administrator, wanted: AuditFilter) -> AsyncIterator[str]:
        """Lines of JSON, newest first, read page by page."""
        after: str | None = None
        while events := await self.page(by, wanted, after=after, limit=EXPORT_PAGE):
            for event in events:
                yield json.dumps(facts_of(event), ensure_ascii=False) + "\n"
            after = events[-1].id


def facts_of(event: AuditEvent) -> dict[str, object]:
    return {
        "id": event.id,
        "at": event.at.isoformat(),
        "action": event.action,
        "tenant_id": event.tenant_id,
        "object": {"type": event.object_type, "id": event.object_id},
        "actor": {"kind": event.actor_kind, "id": event.actor_id, "name": event.actor_name},
        "request_id": event.request_id,
        "address": event.address,
        "before": event.before,
        "after": event.after,
    }
