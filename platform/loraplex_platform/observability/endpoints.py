"""Probes: public, for orchestrators and Prometheus."""

from typing import Protocol

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from loraplex_engine.client import EngineClient
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import current_revision, head_revision
from loraplex_platform.observability.metrics import Metrics

router = APIRouter(include_in_schema=False)


class Degradable(Protocol):
    """Something that serves, if less well, without its remote half."""

    @property
    def is_degraded(self) -> bool: ...

    async def probe(self) -> None: ...


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Touches nothing: the process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """Whether a request sent here would be served."""
    engine: EngineClient = request.app.state.engine
    database, migrations = await _database_checks(request.app.state.database)
    checks = {"database": database, "migrations": migrations, "engine": _engine_check(engine)}
    is_ready = all(value == "ok" for value in checks.values())
    gate: Degradable = request.app.state.gate
    await gate.probe()
    checks["limiter"] = "degraded" if gate.is_degraded else "ok"  # it serves, by local shares
    status = ("degraded" if gate.is_degraded else "ok") if is_ready else "unavailable"
    body = {"status": status, "checks": checks}
    return JSONResponse(body, 200 if is_ready else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    held: Metrics = request.app.state.metrics
    return Response(held.exposition(), media_type=held.content_type)


async def _database_checks(database: Database) -> tuple[str, str]:
    try:
        async with database.reading() as session:
            revision = await current_revision(session)
    except SQLAlchemyError:
        return "unreachable", "unknown"
    head = head_revision()
    return "ok", "ok" if revision == head else f"at {revision}, expected {head}"


def _engine_check(engine: EngineClient) -> str:
    if engine.hello is None:
        return "away"
    if engine.stats is None:
        return "silent"
    return "draining" if engine.stats.draining else "ok"
