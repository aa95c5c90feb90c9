"""Changes of tenants' shares reach what waits in the engine already; new requests carry theirs."""

import asyncio

import structlog
from sqlalchemy.exc import SQLAlchemyError

from loraplex_engine.client import EngineClient
from loraplex_engine.errors import EngineUnavailable
from loraplex_engine.messages import SetTenant, TenantShare
from loraplex_platform.db.database import Database
from loraplex_platform.tenants.repository import TenantRepository

log = structlog.get_logger(__name__)
PERIOD_S = 0.4  # a change is in force within a second
TIMES = 3  # requests under way still carry what was read before the change


class LiveShares:
    """Watches the tenants that have work in the engine, and no others."""

    def __init__(self, database: Database, engine: EngineClient) -> None:
        self._database = database
        self._engine = engine
        self._told: dict[str, tuple[TenantShare, int]] = {}  # and how often it is still to be said
        self._engine_id = ""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.tell()
            except EngineUnavailable:
                pass  # what it has is lost with it
            except SQLAlchemyError:
                log.warning("tenant_shares_unread", exc_info=True)

    async def tell(self) -> None:
        """Send the shares that have changed since they were last sent."""
        stats = self._engine.stats
        if stats is None:
            return
        if stats.engine_id != self._engine_id:
            self._engine_id, self._told = stats.engine_id, {}
        live = {sequence.tenant for sequence in stats.sequences}
        self._told = {tenant: told for tenant, told in self._told.items() if tenant in live}
        if not live:
            return
        async with self._database.reading() as session:
            tenants = TenantRepository(session)
            shares = [
                (await tenants.standing(tenant)).share(tenant.id)
                for tenant in await tenants.among(live)
            ]
        for share in shares:
            known, times = self._told.get(share.tenant, (None, 0))
            times = TIMES if known != share else times
            self._told[share.tenant] = (share, max(0, times - 1))
            if times:
                await self._engine.send(SetTenant(share))
