"""The API: puts the services together and mounts the routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from loraplex_engine.client import EngineClient
from loraplex_platform.auth.service import KeyService
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.errors import install_error_handlers
from loraplex_platform.kit.clock import Clock, SystemClock
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.middleware import RequestContext
from loraplex_platform.observability import endpoints as probes
from loraplex_platform.observability.metrics import Metrics


def create_app(settings: Settings, engine: EngineClient, *, clock: Clock | None = None) -> FastAPI:
    """The application; it starts and closes the engine client and the database with its lifespan."""
    clock = clock or SystemClock()
    database = Database(settings.database, pool_size=settings.database_pool_size)
    secrets = Secrets.load_or_create(settings.home)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        yield
        await engine.close()
        await database.close()

    app = FastAPI(title="Loraplex", lifespan=lifespan)
    app.state.database = database
    app.state.engine = engine
    app.state.metrics = Metrics(engine)
    app.state.keys = KeyService(database, secrets, clock)
    app.add_middleware(RequestContext, max_body_bytes=settings.max_body_bytes)
    install_error_handlers(app)
    app.include_router(probes.router)
    return app
