"""Nothing that a tenant stored is kept for longer than it wants; its books stay."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.admission.repository import RejectionRepository
from loraplex_platform.db.content import content_models, erase_some
from loraplex_platform.db.database import Database
from loraplex_platform.events.models import Delivery
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.kit.clock import Clock
from loraplex_platform.prompts.models import StoredPrompt
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.request_details import erase_details

AT_ONCE = 500  # rows in one transaction
PROMPT_LIFE = timedelta(days=30)  # where the tenant says nothing

Step = Callable[[AsyncSession], Awaitable[int]]


class Retention:
    """Many short transactions: nobody waits long for a row that is to go."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def apply(self) -> int:
        """Erase what is too old; how many rows that were."""
        async with self._database.reading() as session:
            tenants = await TenantRepository(session).all()
        return sum([await self._apply_to(tenant) for tenant in tenants])

    async def erase(self, tenant_id: str) -> int:
        """Everything of a tenant that closes, whatever its age."""
        count = 0
        for model in content_models():
            if model is not Delivery:  # these go with their webhook, which has the last word
                count += await self._all(_erasing(model, tenant_id, None))
        return count + await self._all(lambda s: erase_details(s, tenant_id, None, AT_ONCE))

    async def _apply_to(self, tenant: Tenant) -> int:
        now = self._clock.now()
        if tenant.closed_at is not None:
            return await self.erase(tenant.id)  # what a last request wrote while it closed
        if tenant.retention_days is None:
            return await self._all(_erasing(StoredPrompt, tenant.id, now - PROMPT_LIFE))
        before = now - timedelta(days=tenant.retention_days)
        aged = [model for model in content_models() if model.aged_by is not None]
        steps: list[Step] = [
            *(_erasing(model, tenant.id, before) for model in aged),
            lambda s: erase_details(s, tenant.id, before, AT_ONCE),
            lambda s: FileRepository(s).expire_older(tenant.id, before, now, AT_ONCE),
            lambda s: RejectionRepository(s).trim_samples(tenant.id, before),
        ]
        return sum([await self._all(step) for step in steps])

    async def _all(self, step: Step) -> int:
        """Repeat it, each time in a transaction of its own, until it finds nothing."""
        count = 0
        while True:
            async with self._database.unit_of_work() as session:
                some = await step(session)
            count += some
            if some < AT_ONCE:
                return count


def _erasing(model: type, tenant_id: str, before: datetime | None) -> Step:
    return lambda session: erase_some(session, model, tenant_id, before, AT_ONCE)
