"""The API: puts the services together and mounts the routes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from loraplex_adapters.blobs import BlobStore
from loraplex_adapters.store import AdapterStore
from loraplex_engine.client import EngineClient
from loraplex_platform.admission.effective import EffectiveLimits
from loraplex_platform.admission.gate import Gate
from loraplex_platform.admission.history import UsageHistory
from loraplex_platform.admission.limiter import Limiter
from loraplex_platform.admission.metrics import LimiterMetrics
from loraplex_platform.admission.plans import PlanService
from loraplex_platform.admission.refusals import RefusalService
from loraplex_platform.admission.rejections import RejectionLog
from loraplex_platform.admission.service import LimitService
from loraplex_platform.admission.spend_holds import SpendHolds
from loraplex_platform.admission.stock import check_adapter_bytes
from loraplex_platform.admission.stores import open_store
from loraplex_platform.admission.tenant_limiter import TenantLimiter
from loraplex_platform.audit.service import AuditService
from loraplex_platform.auth.admin_keys import AdminKeyService
from loraplex_platform.auth.authenticator import Authenticator
from loraplex_platform.auth.networks import networks_of
from loraplex_platform.auth.service import KeyService
from loraplex_platform.batches import endpoints as batches
from loraplex_platform.batches.assembly import assemble_dispatcher, line_limiter, open_doorbell
from loraplex_platform.batches.service import BatchService, Bell
from loraplex_platform.catalogue import endpoints as adapters
from loraplex_platform.catalogue import operators as adapter_operators
from loraplex_platform.catalogue import upload
from loraplex_platform.catalogue.desk import open_desk
from loraplex_platform.config import Settings
from loraplex_platform.control.closing import Closer
from loraplex_platform.control.exports import TenantExportService
from loraplex_platform.control.housekeeping import Housekeeper
from loraplex_platform.control.retention import Retention
from loraplex_platform.control.router import router as control
from loraplex_platform.db.database import Database
from loraplex_platform.errors import install_error_handlers
from loraplex_platform.files import endpoints as files
from loraplex_platform.files.service import MAX_BYTES, FileService
from loraplex_platform.kit.clock import Clock, SystemClock
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.middleware import RequestContext
from loraplex_platform.news.opening import open_news
from loraplex_platform.observability import endpoints as probes
from loraplex_platform.observability.health import Health
from loraplex_platform.observability.metrics import Metrics
from loraplex_platform.openai import endpoints as openai
from loraplex_platform.openai.cache_scope import CacheScopes
from loraplex_platform.openai.live_requests import LiveRequests
from loraplex_platform.openai.models import ModelService
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.openai.service import InferenceService
from loraplex_platform.overview.service import OverviewService
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.service import PeopleService
from loraplex_platform.people.sessions import SessionService
from loraplex_platform.people.single_sign_on import open_single_sign_on
from loraplex_platform.prefixes import endpoints as prefixes
from loraplex_platform.prefixes.service import PrefixService
from loraplex_platform.prefixes.warmth import Warmth
from loraplex_platform.prompts import endpoints as prompts
from loraplex_platform.prompts.service import PromptService
from loraplex_platform.rest.idempotency import Idempotency
from loraplex_platform.tenants.live_shares import LiveShares
from loraplex_platform.tenants.projects import ProjectService
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage import endpoints as usage
from loraplex_platform.usage.books import Books
from loraplex_platform.usage.budget_service import BudgetService
from loraplex_platform.usage.credit_service import CreditService
from loraplex_platform.usage.exports import ExportService
from loraplex_platform.usage.invoice_service import InvoiceService
from loraplex_platform.usage.meter import Meter
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.reconciliation import DriftMetrics, Reconciliation
from loraplex_platform.usage.reports import Reports
from loraplex_platform.usage.requests import RequestLog
from loraplex_platform.usage.spending import Spending
from loraplex_platform.usage.spool import Spool
from loraplex_platform.webhooks.outbox import Outbox
from loraplex_platform.webhooks.sender import Sender
from loraplex_platform.webhooks.service import WebhookService

ROUTERS = (
    probes.router,
    openai.router,
    prefixes.router,
    prompts.router,
    files.router,
    adapters.router,
    adapter_operators.router,
    control,
    batches.router,
    usage.router,
)
BATCH_GRACE_S = 3.0  # for lines at work when the process is told to stop
MULTIPART_BYTES = 64 * 1024  # what a form has around its file


def create_app(
    settings: Settings,
    engine: EngineClient,
    model: ServedModel,
    *,
    limiter: Limiter | None = None,
    clock: Clock | None = None,
) -> FastAPI:
    """The application; it starts and closes the engine client and the database with its lifespan."""
    clock = clock or SystemClock()
    news = open_news(settings.redis_url, settings.redis_timeout_s)
    database = Database(settings.database, pool_size=settings.database_pool_size, news=news)
    secrets = Secrets.load_or_create(settings.home)
    metrics = Metrics(engine, settings.metrics_folder)
    limiter_metrics = LimiterMetrics(metrics.registry)
    store = open_store(
        settings.redis_url, settings.redis_timeout_s, settings.workers, limiter_metrics.degraded
    )
    prices = PriceService(database, clock)
    holds = SpendHolds(database, store, clock)
    history = UsageHistory(database, clock, Spending(prices))
    gate = Gate(store, history, open_holds=holds.open_of)
    books = Books(prices, clock)
    meter = Meter(database, books, Spool(settings.home / "spool"))
    reconciliation = Reconciliation(database, engine, clock, DriftMetrics(metrics.registry))
    budgets = BudgetService(database, clock, Spending(prices))
    rejections = RejectionLog(database, clock)
    limits = EffectiveLimits(database, clock)
    ttl_s = settings.claim_ttl_s
    tenant_limiter = TenantLimiter(gate, limits, rejections, limiter_metrics, ttl_s, prices, holds)
    for_lines = line_limiter(
        settings, database, clock, gate, rejections, limiter_metrics, prices, holds
    )
    desk = open_desk(settings, database, engine, clock, model.id, check_adapter_bytes)
    prompt_service = PromptService(database, clock)
    inference = InferenceService(
        settings=settings,
        engine=engine,
        model=model,
        database=database,
        limiter=limiter or tenant_limiter,
        recorder=meter,
        metrics=metrics,
        secrets=secrets,
        clock=clock,
        routes=desk.routes,
        prompts=prompt_service,
    )
    blobs = BlobStore(settings.files)
    file_service = FileService(database, blobs, clock)
    jobs = _jobs_of(
        settings,
        engine=engine,
        model=model,
        database=database,
        limiter=limiter or for_lines,
        metrics=metrics,
        secrets=secrets,
        files=file_service,
        books=books,
        clock=clock,
    )

    authenticator = Authenticator(database, secrets, clock)
    shares = LiveShares(database, engine)
    scopes = CacheScopes(secrets)
    warmth = Warmth(database, engine, scopes, base_id=model.id, region=settings.region)
    sender = Sender(networks_of(settings.webhook_networks))
    outbox = Outbox(database, secrets, sender, clock)
    passwords = Passwords()
    sessions = SessionService(database, secrets, passwords, clock)
    single_sign_on = open_single_sign_on(settings, sessions, secrets, clock)
    idempotency = Idempotency(database, secrets, clock)
    retention = Retention(database, clock)
    tenant_exports = TenantExportService(
        database, blobs, AdapterStore(settings.adapter_store), clock
    )
    closer = Closer(database, tenant_exports, retention, clock)
    housekeeper = Housekeeper(closer, retention, sessions, idempotency, clock)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        await meter.recover()  # what a killed process left counts before anything is admitted
        jobs.start()
        running = [
            asyncio.create_task(run())
            for run in (
                news.run,
                rejections.run,
                meter.run,
                holds.run,
                budgets.run,
                reconciliation.run,
                authenticator.uses.run,
                shares.run,
                warmth.run,
                inference.live.run,
                outbox.run,
                desk.run,
                housekeeper.run,
            )
        ]
        yield
        await jobs.stop(BATCH_GRACE_S)
        await inference.tasks.drain()  # what was served is written down first
        for task in running:
            task.cancel()
        await rejections.flush()
        await holds.flush()
        await authenticator.uses.flush()
        meter.close()
        await gate.close()
        await news.close()
        await engine.close()
        await database.close()

    app = FastAPI(title="Loraplex", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.database = database
    app.state.engine = engine
    app.state.metrics = metrics
    app.state.authenticator = authenticator
    app.state.keys = KeyService(database, secrets, clock)
    app.state.admin_keys = AdminKeyService(database, secrets, clock)
    app.state.housekeeper = housekeeper
    app.state.tenant_exports = tenant_exports
    app.state.prompts = prompt_service
    app.state.webhooks = WebhookService(database, secrets, sender, clock)
    app.state.audit = AuditService(database)
    app.state.people = PeopleService(database, secrets, passwords, clock)
    app.state.sessions = sessions
    app.state.single_sign_on = single_sign_on
    app.state.idempotency = idempotency
    app.state.tenants = TenantService(database, clock)
    app.state.plans = PlanService(database, clock)
    app.state.limits = LimitService(database, clock)
    app.state.projects = ProjectService(database, clock)
    app.state.models = ModelService(database, model, clock.now())
    app.state.inference = inference
    app.state.live_requests = LiveRequests(engine)
    app.state.warmth = warmth
    app.state.prefixes = PrefixService(
        database,
        engine,
        inference.models,
        warmth,
        clock,
        wait_s=settings.engine_wait_s,
        region=settings.region,
    )
    app.state.adapters = desk
    app.state.meter = meter
    app.state.prices = prices
    app.state.budgets = budgets
    app.state.credits = CreditService(database, clock)
    app.state.reports = Reports(database, clock)
    issuer, address = settings.invoice_issuer, settings.invoice_address
    app.state.invoices = InvoiceService(database, clock, issuer, address)
    app.state.exports = ExportService(
        database, clock, settings.home / "exports", issuer=issuer, region=settings.region
    )
    app.state.gate = gate
    app.state.health = Health(database, engine, gate, reconciliation)
    app.state.refusals = RefusalService(database, clock)
    app.state.overview = OverviewService(engine, database, gate, reconciliation, clock)
    app.state.requests = RequestLog(database)
    app.state.clock = clock
    app.state.rejections = rejections
    app.state.files = file_service
    app.state.batches = BatchService(database, jobs, clock)
    app.state.jobs = jobs
    app.add_middleware(
        RequestContext,
        max_body_bytes=settings.max_body_bytes,
        larger={
            "/v1/files": MAX_BYTES + MULTIPART_BYTES,
            **dict.fromkeys(upload.PATHS, upload.MAX_BYTES + MULTIPART_BYTES),
        },
        trusted_proxies=networks_of(settings.trusted_proxies),
    )
    install_error_handlers(app)
    for router in ROUTERS:
        # Not include_router: that builds each route anew for each application, a second of CPU.
        app.router.routes.extend(router.routes)
    return app


def _jobs_of(settings: Settings, **services: Any) -> Bell:
    """Who runs batch jobs: this process, or the workers behind a bell."""
    if settings.batch_dispatcher == "celery":
        assert settings.redis_url is not None, "checked by the settings"
        return open_doorbell(settings.redis_url)
    return assemble_dispatcher(settings=settings, **services)
