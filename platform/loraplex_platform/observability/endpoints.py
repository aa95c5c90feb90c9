"""Probes: public, for orchestrators and Prometheus."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from loraplex_platform.observability.health import NEED_NOT_BE_OK, Health
from loraplex_platform.observability.metrics import Metrics

router = APIRouter(include_in_schema=False)


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Touches nothing: the process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """Whether a request sent here would be served."""
    health: Health = request.app.state.health
    checks = await health.checks()
    is_ready = all(checks[name] == "ok" for name in checks if name not in NEED_NOT_BE_OK)
    is_whole = all(checks[name] == "ok" for name in NEED_NOT_BE_OK)
    status = ("ok" if is_whole else "degraded") if is_ready else "unavailable"
    return JSONResponse({"status": status, "checks": checks}, 200 if is_ready else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    held: Metrics = request.app.state.metrics
    return Response(held.exposition(), media_type=held.content_type)
