"""What the catalogue asks of the engine: have a version ready, keep it there, test it, forget it."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from loraplex_engine.client import EngineClient
from loraplex_engine.errors import EngineUnavailable
from loraplex_engine.messages import (
    CheckAdapter,
    DropAdapter,
    EngineStats,
    PinAdapter,
    PreloadAdapter,
)
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import UNREACHABLE, Database
from loraplex_platform.kit.clock import Clock

CHECK_S = 2.0  # how long a pin may go unseen
MAX_TESTS = 4  # asked for at once, fewer than the results an engine keeps
REMOVED = timedelta(hours=1)  # how far back removals are looked for


class Residency:
    def __init__(self, database: Database, engine: EngineClient, clock: Clock) -> None:
        self._database = database
        self._engine = engine
        self._clock = clock
        self._pinned: set[tuple[str, str]] = set()  # (version, tenant) as the engine knows them
        self._tested: set[str] = set()  # asked of this engine
        self._dropped: set[str] = set()  # ids of removed rows that the engine was told of
        self._engine_id: str | None = None

    async def preload(self, version: str, tenant_id: str) -> None:
        """Raises EngineUnavailable."""
        await self._engine.send(PreloadAdapter(version, tenant_id))

    async def drop(self, version: str, within_s: float) -> None:
        """Once its running requests end, which have so long; an engine that is away has forgotten it."""
        with suppress(EngineUnavailable):
            await self._engine.send(DropAdapter(version, within_s))

    async def sync(self) -> None:
        """Tell the engine what is gone, pinned and to be tested; pins and tests again if it has restarted."""
        stats = self._engine.stats
        if stats is None:
            return
        if stats.engine_id != self._engine_id:
            self._engine_id = stats.engine_id
            self._pinned.clear()
            self._tested.clear()
        await self._keep_results(stats)
        await self._ask_for_tests()
        await self._drop_removed()
        await self._sync_pins()

    async def _keep_results(self, stats: EngineStats) -> None:
        """Store what self-tests found; another API process may have done so already."""
        found = [check for check in stats.adapter_checks if check.version in self._tested]
        if found:
            async with self._database.unit_of_work() as session:
                for check in found:
                    await AdapterRepository(session).set_parity(check.version, check.to_json())
            self._tested -= {check.version for check in found}

    async def _ask_for_tests(self) -> None:
        async with self._database.reading() as session:
            untested = await AdapterRepository(session).untested(MAX_TESTS)
        for version in untested:
            if version not in self._tested:
                self._tested.add(version)
                await self._engine.send(CheckAdapter(version))

    async def _drop_removed(self) -> None:
        """Whoever took a name away, a command as well, the engine forgets what nobody names."""
        async with self._database.reading() as session:
            adapters = AdapterRepository(session)
            removed = await adapters.removed_since(self._clock.now() - REMOVED)
            new = [row for row in removed if row.id not in self._dropped]
            used = {row.version for row in new if await adapters.is_version_used(row.version)}
        for version in sorted({row.version for row in new} - used):
            await self._engine.send(DropAdapter(version))
        self._dropped = {row.id for row in removed}

    async def _sync_pins(self) -> None:
        async with self._database.reading() as session:
            rows = await AdapterRepository(session).pinned()
        wanted = {(row.version, row.tenant_id) for row in rows}
        let_go = {version for version, _ in self._pinned} - {version for version, _ in wanted}
        for version, tenant_id in sorted(self._pinned - wanted):
            if version in let_go:
                await self._engine.send(PinAdapter(version, tenant_id, pinned=False))
        for version, tenant_id in sorted(wanted - self._pinned):
            await self._engine.send(PinAdapter(version, tenant_id, pinned=True))
        self._pinned = wanted

    async def run(self) -> None:
        """Keeps the engine in step until it is cancelled."""
        while True:
            with suppress(EngineUnavailable, *UNREACHABLE):  # the next round sends what is missing
                await self.sync()
            await asyncio.sleep(CHECK_S)
