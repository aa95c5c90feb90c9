"""The only place that knows HTTP: each error's status and OpenAI `type`, and the error object."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from loraplex_engine.errors import (
    BadRequest,
    ContextTooLong,
    DeadlineExceeded,
    EngineError,
    EngineOverloaded,
    EngineUnavailable,
)
from loraplex_platform.db.database import UNREACHABLE
from loraplex_platform.kit import errors as kit
from loraplex_platform.kit.redaction import without_keys

log = structlog.get_logger(__name__)


class HttpShape(NamedTuple):
    """How an error looks from outside."""

    status: int
    type: str


SHAPES: dict[type[kit.PlatformError], HttpShape] = {
    kit.InvalidRequest: HttpShape(400, "invalid_request_error"),
    kit.TooLarge: HttpShape(413, "invalid_request_error"),
    kit.RangeNotSatisfiable: HttpShape(416, "invalid_request_error"),
    kit.HeadersTooLarge: HttpShape(431, "invalid_request_error"),
    kit.InvalidApiKey: HttpShape(401, "invalid_request_error"),
    kit.InvalidLogin: HttpShape(401, "invalid_request_error"),
    kit.PermissionDenied: HttpShape(403, "permission_error"),
    kit.NotFound: HttpShape(404, "invalid_request_error"),
    kit.Conflict: HttpShape(409, "invalid_request_error"),
    kit.PreconditionFailed: HttpShape(412, "invalid_request_error"),
    kit.KeyReused: HttpShape(422, "invalid_request_error"),
    kit.RateLimited: HttpShape(429, "rate_limit_error"),
    kit.Overloaded: HttpShape(503, "service_unavailable_error"),
    kit.DeadlineExceeded: HttpShape(504, "server_error"),
    kit.InternalError: HttpShape(500, "server_error"),
    kit.PlatformError: HttpShape(500, "server_error"),
}

LONGEST_RETRY_S = 60.0

# pydantic's error types -> OpenAI's codes
MOST_SHOWN = 2_000  # characters of a message
VALIDATION_CODES = {
    "missing": "missing_required_parameter",
    "json_invalid": None,
    "extra_forbidden": "unsupported_parameter",
    "literal_error": "invalid_value",
    "value_error": "invalid_value",
}


def shape_of(error: kit.PlatformError) -> HttpShape:
    shape = next(SHAPES[kind] for kind in type(error).__mro__ if kind in SHAPES)
    if isinstance(error, kit.RateLimited):
        return shape._replace(type=error.dimension)
    return shape


def error_object(error: kit.PlatformError) -> dict[str, Any]:
    """OpenAI's error body; all four keys are always there, and no key of anybody's."""
    return {
        "error": {
            "message": _shown(error.message),
            "type": shape_of(error).type,
            "param": error.param and _shown(error.param),
            "code": error.code,
        }
    }


def _shown(text: str) -> str:
    """What a client sent comes back in part only: a name of a megabyte is no answer."""
    shown = without_keys(text)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"


def headers_of(error: kit.PlatformError) -> dict[str, str]:
    """Headers that steer the client: when to retry, or not to."""
    if isinstance(error, kit.InvalidApiKey):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, kit.RangeNotSatisfiable):
        return {"content-range": f"bytes */{error.num_bytes}"}
    if isinstance(error, kit.StillRunning):
        return retry_headers(error.retry_after_s)
    if isinstance(error, kit.Conflict):
        return {"x-should-retry": "false"}  # the official client retries every 409 and 429
    if isinstance(error, kit.RateLimited):
        return error.headers | retry_headers(error.retry_after_s, may_retry=error.may_retry)
    if isinstance(error, kit.Overloaded):
        return retry_headers(error.retry_after_s)
    return {}


def retry_headers(retry_after_s: float | None, *, may_retry: bool = True) -> dict[str, str]:
    """When to come back; the official clients do not wait longer than LONGEST_RETRY_S."""
    if retry_after_s is None:
        return {"x-should-retry": "false"}
    is_soon = may_retry and retry_after_s <= LONGEST_RETRY_S
    return {
        "retry-after": str(math.ceil(retry_after_s)),
        "retry-after-ms": str(math.ceil(retry_after_s * 1000)),
        "x-should-retry": "true" if is_soon else "false",
    }


def error_response(
    error: kit.PlatformError, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(
        error_object(error), shape_of(error).status, {**(headers or {}), **headers_of(error)}
    )


def from_engine(error: EngineError) -> kit.PlatformError:
    """What an engine's error means to a client."""
    if isinstance(error, ContextTooLong):
        return kit.ContextLengthExceeded(str(error), param="messages")
    if isinstance(error, BadRequest):
        return kit.InvalidRequest(str(error))
    if isinstance(error, EngineOverloaded):
        return kit.Overloaded(str(error), retry_after_s=error.retry_after_s)
    if isinstance(error, DeadlineExceeded):
        return kit.DeadlineExceeded(str(error))
    if isinstance(error, EngineUnavailable):
        return kit.Overloaded(str(error), retry_after_s=1.0)
    return kit.InternalError()


def from_validation(error: RequestValidationError) -> kit.InvalidRequest:
    """The first thing that is wrong, with the dotted path of the field."""
    first = error.errors()[0]
    kind, path = first["type"], [str(part) for part in first["loc"]]
    if kind == "json_invalid":
        return kit.InvalidRequest("We could not parse the JSON body of your request.")
    param = ".".join(path[1:]) or None  # loc starts with "body", "query", …
    if kind == "extra_forbidden" and param is not None:
        return kit.UnsupportedParameter(param)
    nested = first.get("ctx", {}).get("error")
    if isinstance(nested, kit.InvalidRequest):
        return nested
    code = VALIDATION_CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    where = f"'{param}'" if param is not None else "the body"
    return kit.InvalidRequest(f"{first['msg']}: {where}.", param=param, code=code)


def from_body(error: ValidationError) -> kit.InvalidRequest:
    """The same for a body that did not come as a request's JSON."""
    faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
    return from_validation(RequestValidationError(faults))


def install_error_handlers(app: FastAPI) -> None:
    """Every error, whoever raises it, leaves as OpenAI's error object."""

    async def platform(_: Request, error: Exception) -> Response:
        assert isinstance(error, kit.PlatformError)
        return error_response(error)

    async def engine(_: Request, error: Exception) -> Response:
        assert isinstance(error, EngineError)
        return error_response(from_engine(error))

    async def validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(from_validation(error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        body = error_object(_from_http(request, error))
        return JSONResponse(body, error.status_code, error.headers)

    async def database_away(request: Request, error: Exception) -> Response:
        log.warning("database_away", path=request.url.path, error=type(error).__name__)
        return error_response(kit.Overloaded("The database is away.", retry_after_s=1.0))

    async def unstorable(request: Request, error: Exception) -> Response:
        """What psycopg does not even send: text with NUL."""
        assert isinstance(error, DataError)
        if getattr(error.orig, "sqlstate", None) is not None:
            raise error  # the database refused it, after all our checks: a fault of ours
        kind = type(error.orig).__name__  # its text may hold the value
        log.warning("value_refused_by_database", path=request.url.path, error=kind)
        if "\0" in request.scope["path"]:  # as SQLite, which looks for it, tells it
            return error_response(kit.NotFound())
        return error_response(kit.InvalidRequest("The request holds what cannot be stored."))

    async def unexpected(request: Request, error: Exception) -> Response:
        log.error("unexpected_error", path=request.url.path, exc_info=error)
        # Starlette answers this one outside of our middleware.
        return error_response(kit.InternalError(), {"x-request-id": request.state.request_id})

    app.add_exception_handler(kit.PlatformError, platform)
    app.add_exception_handler(EngineError, engine)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    for unreachable in UNREACHABLE:
        app.add_exception_handler(unreachable, database_away)
    app.add_exception_handler(DataError, unstorable)
    app.add_exception_handler(Exception, unexpected)


def _from_http(request: Request, error: HTTPException) -> kit.PlatformError:
    """Starlette's own refusals: unknown routes, wrong methods, unreadable bodies."""
    where = f"({request.method} {request.url.path})"
    if error.status_code == 404:
        return kit.NotFound(f"Unknown request URL {where}.", code="unknown_url")
    if error.status_code == 405:
        return kit.InvalidRequest(f"Not allowed to {where}.", code="method_not_allowed")
    if error.status_code == 413:
        return kit.TooLarge(str(error.detail))
    if error.status_code < 500:
        return kit.InvalidRequest(str(error.detail))
    return kit.InternalError()
