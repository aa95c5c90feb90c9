"""Requests at work by tenant, so that a tenant's suspension ends them."""

import asyncio
from collections import defaultdict
from contextlib import suppress

import structlog

from loraplex_platform.db.database import UNREACHABLE, Database
from loraplex_platform.kit.errors import PermissionDenied
from loraplex_platform.openai.generation import Generation
from loraplex_platform.tenants.repository import TenantRepository

CHECK_S = 1.0  # with the query itself, the longest a suspended tenant's stream goes on

log = structlog.get_logger(__name__)


class LiveRequests:
    """Each process watches its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._of_tenant: defaultdict[str, set[Generation]] = defaultdict(set)
        self._has_news = asyncio.Event()
        database.news.subscribe(self._hear)

    def add(self, tenant_id: str, generation: Generation) -> None:
        self._of_tenant[tenant_id].add(generation)
        generation.on_end(lambda: self._remove(tenant_id, generation))

    async def run(self) -> None:
        """Until cancelled; while the database is away nothing ends."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_news.wait(), CHECK_S)
            self._has_news.clear()
            try:
                await self.check()
            except UNREACHABLE as error:
                log.warning("suspensions_not_read", error=type(error).__name__)

    async def check(self) -> None:
        """End the requests of tenants that are no longer active."""
        tenant_ids = sorted(self._of_tenant)
        if not tenant_ids:
            return
        async with self._database.reading() as session:
            suspended = await TenantRepository(session).inactive(tenant_ids)
        for tenant_id in suspended:
            for generation in list(self._of_tenant.get(tenant_id, ())):
                generation.dismiss(
                    PermissionDenied("Your account is suspended.", code="account_suspended")
                )

    def _hear(self, tenants: frozenset[str | None]) -> None:
        if not tenants.isdisjoint(self._of_tenant):
            self._has_news.set()

    def _remove(self, tenant_id: str, generation: Generation) -> None:
        self._of_tenant[tenant_id].discard(generation)
        if not self._of_tenant[tenant_id]:
            del self._of_tenant[tenant_id]
