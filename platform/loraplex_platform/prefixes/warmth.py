"""Keeps the engine told of all prefixes: new ones, those of a new version, and all after a restart."""

import asyncio
from contextlib import suppress

import structlog
from sqlalchemy.exc import SQLAlchemyError

from loraplex_engine.client import EngineClient
from loraplex_engine.errors import EngineUnavailable
from loraplex_engine.messages import DropPrefix, RegisterPrefix
from loraplex_platform.db.database import Database
from loraplex_platform.openai.cache_scope import CacheScopes
from loraplex_platform.prefixes.repository import Living, PrefixRepository

log = structlog.get_logger(__name__)
PERIOD_S = 2.0


class Warmth:
    """What this process has told the engine; other processes tell it the same, which is no matter."""

    def __init__(
        self,
        database: Database,
        engine: EngineClient,
        scopes: CacheScopes,
        *,
        base_id: str,
        region: str,
    ) -> None:
        self._database = database
        self._engine = engine
        self._scopes = scopes
        self._base_id = base_id
        self._region = region
        self._told: set[Living] = set()
        self._engine_id = ""
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        while True:
            try:
                await self.update()
            except SQLAlchemyError:
                log.warning("prefixes_unread", exc_info=True)
            await asyncio.sleep(PERIOD_S)

    async def update(self) -> None:
        """Bring the engine up to date; one that is away is told when it is back."""
        async with self._lock:
            with suppress(EngineUnavailable):
                await self._tell()

    async def _tell(self) -> None:
        stats = self._engine.stats
        if stats is None:
            return
        if stats.engine_id != self._engine_id:
            self._engine_id, self._told = stats.engine_id, set()
        async with self._database.reading() as session:
            prefixes = PrefixRepository(session)
            living = {
                each.prefix_id: each for each in await prefixes.living(self._base_id, self._region)
            }
            untold = [i for i, each in living.items() if each not in self._told]
            rows = await prefixes.with_tokens(untold) if untold else ()
        for gone in {told.prefix_id for told in self._told} - living.keys():
            await self._engine.send(DropPrefix(gone))
        self._told &= set(living.values())
        for row in rows:
            await self._engine.send(
                RegisterPrefix(
                    prefix_id=row.id,
                    tenant=row.tenant_id,
                    cache_scope=self._scopes.of(row.tenant_id),
                    adapter=living[row.id].adapter_version,
                    token_ids=tuple(row.token_ids),
                )
            )
            self._told.add(living[row.id])
