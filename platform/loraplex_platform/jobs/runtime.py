"""A worker process: one event loop in a thread of its own, made when the process starts."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loraplex_adapters.blobs import BlobStore
from loraplex_engine.client import RemoteEngine
from loraplex_platform.admission.gate import Gate
from loraplex_platform.admission.history import UsageHistory
from loraplex_platform.admission.metrics import LimiterMetrics
from loraplex_platform.admission.rejections import RejectionLog
from loraplex_platform.admission.spend_holds import SpendHolds
from loraplex_platform.admission.stores import open_store
from loraplex_platform.batches.assembly import assemble_dispatcher, line_limiter
from loraplex_platform.batches.dispatcher import Dispatcher
from loraplex_platform.config import BadSetting, Settings
from loraplex_platform.db.database import Database
from loraplex_platform.files.service import FileService
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.news.opening import open_news
from loraplex_platform.observability.metrics import Metrics
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.usage.books import Books
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.spending import Spending

START_S = 60.0
GRACE_S = 10.0  # for lines at work when the process is told to stop


class Runtime:
    """Started after the fork: neither sockets nor connections cross it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dispatcher: Dispatcher | None = None
        self._is_started = threading.Event()
        self._stop = asyncio.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        # made here: a fork marks every thread object that it finds as stopped
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._thread.start()
        if not self._is_started.wait(START_S):
            raise TimeoutError("the dispatcher does not start")

    def ring(self) -> None:
        assert self._loop is not None
        assert self._dispatcher is not None
        self._loop.call_soon_threadsafe(self._dispatcher.ring)

    def stop(self) -> None:
        """Returns when what ran is written down or given back."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(GRACE_S * 2)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        async with working(self._settings) as dispatcher:
            self._loop, self._dispatcher = asyncio.get_running_loop(), dispatcher
            self._is_started.set()
            await self._stop.wait()


@asynccontextmanager
async def working(settings: Settings) -> AsyncIterator[Dispatcher]:
    """A dispatcher at work, with everything it needs."""
    if settings.model is None or settings.engine_address is None:
        raise BadSetting("ENGINE_ADDRESS", "", "that and LORAPLEX_MODEL, the model's folder")
    model = ServedModel.load(Path(settings.model), settings.served_model_name)
    clock, engine = SystemClock(), RemoteEngine(settings.engine_address)
    news = open_news(settings.redis_url, settings.redis_timeout_s)
    database = Database(settings.database, pool_size=settings.database_pool_size, news=news)
    metrics = Metrics(engine)
    limiter_metrics = LimiterMetrics(metrics.registry)
    store = open_store(
        settings.redis_url, settings.redis_timeout_s, settings.workers, limiter_metrics.degraded
    )
    prices = PriceService(database, clock)
    holds = SpendHolds(database, store, clock)
    history = UsageHistory(database, clock, Spending(prices))
    gate = Gate(store, history, open_holds=holds.open_of)
    rejections = RejectionLog(database, clock)
    dispatcher = assemble_dispatcher(
        settings=settings,
        engine=engine,
        model=model,
        database=database,
        limiter=line_limiter(
            settings, database, clock, gate, rejections, limiter_metrics, prices, holds
        ),
        metrics=metrics,
        secrets=Secrets.load_or_create(settings.home),
        files=FileService(database, BlobStore(settings.files), clock),
        books=Books(prices, clock),
        clock=clock,
    )
    await engine.start()
    dispatcher.start()
    running = [asyncio.create_task(run()) for run in (rejections.run, holds.run, news.run)]
    try:
        yield dispatcher
    finally:
        await dispatcher.stop(GRACE_S)
        for task in running:
            task.cancel()
        await rejections.flush()
        await holds.flush()
        await gate.close()
        await news.close()
        await engine.close()
        await database.close()
