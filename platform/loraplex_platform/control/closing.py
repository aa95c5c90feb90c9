"""Tenants that close: exported once more, then all that they stored is erased; their books stay."""

import asyncio
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.auth.repository import KeyRepository
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.control.exports import TenantExportService
from loraplex_platform.control.retention import Retention
from loraplex_platform.db.database import Database
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Actor
from loraplex_platform.people.repository import PeopleRepository
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.webhooks.repository import WebhookRepository

HOUSEKEEPER = Actor("system", "housekeeper")
LAST_WORD = timedelta(hours=1)  # for webhooks to be told that their tenant is closed
EXPORT_LIFE = timedelta(days=30)
LATENESS = timedelta(days=7)  # of a housekeeper that did not run


class Closer:
    """Every step may be cut short and made again."""

    def __init__(
        self,
        database: Database,
        exports: TenantExportService,
        retention: Retention,
        clock: Clock,
    ) -> None:
        self._database = database
        self._exports = exports
        self._retention = retention
        self._clock = clock

    async def run_once(self) -> None:
        async with self._database.reading() as session:
            closing = [tenant.id for tenant in await TenantRepository(session).closing()]
        for tenant_id in closing:
            await self._exports.keep(tenant_id)
            await self._retention.erase(tenant_id)
            await self._close(tenant_id)
        await self._remove_webhooks()
        await self._forget_exports()

    async def _close(self, tenant_id: str) -> None:
        async with changing(self._database, HOUSEKEEPER, self._clock) as session:
            tenant = await TenantRepository(session).to_close(tenant_id)
            if tenant is not None:
                await self._erase(session, tenant)
                tenant.state, tenant.closed_at = "closed", self._clock.now()

    async def _erase(self, session: AsyncSession, tenant: Tenant) -> None:
        now, keys = self._clock.now(), KeyRepository(session)
        for key in await keys.of_tenant(tenant.id):
            key.revoked_at = key.revoked_at or now
        for admin_key in await keys.admin_keys_of(tenant.id):
            admin_key.revoked_at = admin_key.revoked_at or now
        people = PeopleRepository(session)
        for person in await people.of_tenant(tenant.id):
            for opened in await people.sessions_of(person.id):
                await people.remove(opened)
            for link in await people.links_of(person.id):
                await people.remove(link)
            await people.remove(person)
        adapters = AdapterRepository(session)
        for version in await adapters.all_living_of_tenant(tenant.id):
            version.removed_at = now
        for name in await adapters.names_of_tenant(tenant.id):
            await adapters.delete(name)
        await FileRepository(session).delete_all(tenant.id, now)

    async def _remove_webhooks(self) -> None:
        """With their secrets, once they have had the last word."""
        async with changing(self._database, HOUSEKEEPER, self._clock) as session:
            webhooks = WebhookRepository(session)
            for webhook in await webhooks.of_closed(self._clock.now() - LAST_WORD):
                await webhooks.remove(webhook)

    async def _forget_exports(self) -> None:
        end = self._clock.now() - EXPORT_LIFE
        async with self._database.reading() as session:
            ids = await TenantRepository(session).closed_between(end - LATENESS, end)
        for tenant_id in ids:
            await asyncio.to_thread(self._exports.forget, tenant_id)
