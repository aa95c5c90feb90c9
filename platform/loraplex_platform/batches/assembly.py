"""A dispatcher out of the services that it needs: the same in an API process and in a worker."""

from importlib import import_module

from loraplex_engine.client import EngineClient
from loraplex_platform.admission.effective import EffectiveLimits
from loraplex_platform.admission.gate import Gate
from loraplex_platform.admission.limiter import Limiter
from loraplex_platform.admission.metrics import LimiterMetrics
from loraplex_platform.admission.rejections import RejectionLog
from loraplex_platform.admission.spend_holds import SpendHolds
from loraplex_platform.admission.tenant_limiter import TenantLimiter
from loraplex_platform.batches.capacity import Capacity
from loraplex_platform.batches.closing import Closing
from loraplex_platform.batches.dispatcher import Dispatcher, Pace
from loraplex_platform.batches.intake import Intake
from loraplex_platform.batches.line_runner import HeldFacts, LineRunner
from loraplex_platform.batches.queue import LineQueue
from loraplex_platform.batches.service import Bell
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.files.service import FileService
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.observability.metrics import Metrics
from loraplex_platform.openai.resolver import Resolver
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.openai.service import InferenceService
from loraplex_platform.usage.books import Books
from loraplex_platform.usage.price_service import PriceService


class CeleryNotInstalled(Exception):
    """LORAPLEX_BATCH_DISPATCHER=celery needs pip install 'loraplex[production]'."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def open_doorbell(redis_url: str) -> Bell:
    """The bell of the workers' door, for a process that runs no jobs itself."""
    try:  # by name: Celery belongs to an extra, and jobs is a layer above this one
        module = import_module("loraplex_platform.jobs.doorbell")
    except ModuleNotFoundError as error:
        raise CeleryNotInstalled from error
    bell: Bell = module.Doorbell(redis_url)
    return bell


def line_limiter(
    settings: Settings,
    database: Database,
    clock: Clock,
    gate: Gate,
    rejections: RejectionLog,
    metrics: LimiterMetrics,
    prices: PriceService,
    holds: SpendHolds,
) -> TenantLimiter:
    """Lines take from daily and monthly budgets; the rates are for live requests alone."""
    limits = EffectiveLimits(database, clock, kinds=("day", "month", "window"))
    return TenantLimiter(gate, limits, rejections, metrics, settings.claim_ttl_s, prices, holds)


def assemble_dispatcher(
    *,
    settings: Settings,
    engine: EngineClient,
    model: ServedModel,
    database: Database,
    limiter: Limiter,
    metrics: Metrics,
    secrets: Secrets,
    files: FileService,
    books: Books,
    clock: Clock,
) -> Dispatcher:
    """A dispatcher that is to be started."""
    held, pace = (
        HeldFacts(),
        Pace(settings.batch_concurrency, settings.batch_lease_s, settings.batch_tick_s),
    )
    inference = InferenceService(
        settings=settings,
        engine=engine,
        model=model,
        database=database,
        limiter=limiter,
        metrics=metrics,
        secrets=secrets,
        clock=clock,
        recorder=held,
    )
    resolver = Resolver(database, model.id, clock)
    limits = EffectiveLimits(database, clock)
    return Dispatcher(
        database=database,
        queue=LineQueue(database, files, books, clock, pace.lease_s),
        runner=LineRunner(inference, held),
        intake=Intake(database, files, resolver, limits, clock, pace.lease_s),
        closing=Closing(database, files, clock, pace.lease_s),
        files=files,
        capacity=Capacity(engine, clock, pace.concurrency),
        clock=clock,
        pace=pace,
    )
