"""What nobody waits for: closing tenants, and throwing away what is over."""

import asyncio

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.auth.repository import KeyRepository
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import UNREACHABLE, Database
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Actor
from loraplex_platform.people.repository import PeopleRepository
from loraplex_platform.people.sessions import SessionService
from loraplex_platform.rest.idempotency import Idempotency
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.webhooks.repository import WebhookRepository

EVERY_S = 30.0
HOUSEKEEPER = Actor("system", "housekeeper")

log = structlog.get_logger(__name__)


class Housekeeper:
    """Any number of processes may run one."""

    def __init__(
        self,
        database: Database,
        sessions: SessionService,
        idempotency: Idempotency,
        clock: Clock,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._idempotency = idempotency
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.tidy()
            except UNREACHABLE as error:
                log.warning("housekeeping_failed", error=type(error).__name__)

    async def tidy(self) -> None:
        await self._close_tenants()
        await self._sessions.sweep()
        await self._idempotency.sweep()

    async def _close_tenants(self) -> None:
        """Erase what closing tenants have stored; usage, ledger, invoices and the log stay."""
        async with changing(self._database, HOUSEKEEPER, self._clock) as session:
            for tenant in await TenantRepository(session).closing():
                await self._erase(session, tenant)
                tenant.state = "closed"

    async def _erase(self, session: AsyncSession, tenant: Tenant) -> None:
        now = self._clock.now()
        for key in await KeyRepository(session).of_tenant(tenant.id):
            key.revoked_at = key.revoked_at or now
        for admin_key in await KeyRepository(session).admin_keys_of(tenant.id):
            admin_key.revoked_at = admin_key.revoked_at or now
        people = PeopleRepository(session)
        for person in await people.of_tenant(tenant.id):
            for opened in await people.sessions_of(person.id):
                await people.remove(opened)
            for link in await people.links_of(person.id):
                await people.remove(link)
            await people.remove(person)
        for webhook in await WebhookRepository(session).of_tenant(tenant.id):
            await WebhookRepository(session).remove(webhook)
        for adapter in await AdapterRepository(session).living_of_tenant(tenant.id):
            adapter.removed_at = now
        await FileRepository(session).delete_all(tenant.id, now)
