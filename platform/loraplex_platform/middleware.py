"""Around every request: an id of our own, a bounded body, one line in the log."""

import re
import time
from collections.abc import Mapping

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loraplex_platform.kit.ids import new_id

log = structlog.get_logger(__name__)
QUIET = frozenset({"/livez", "/readyz", "/metrics"})
UNPRINTABLE = re.compile(r"[^\x21-\x7e]")


class RequestContext:
    """Sets `request_id` and `client_request_id` in the request's state; answers carry the first."""

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, larger: Mapping[str, int] | None = None
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._larger = larger or {}  # by path: what an upload may have

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, started = new_id("req"), time.monotonic()
        theirs = Headers(scope=scope).get("x-request-id")
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["client_request_id"] = theirs and UNPRINTABLE.sub("", theirs)[:128]
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                headers["openai-processing-ms"] = str(round((time.monotonic() - started) * 1000))
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                limit = self._larger.get(scope["path"], self._max_body_bytes)
                await self._app(scope, _bounded(receive, limit), send_with_id)
            finally:
                if scope["path"] not in QUIET:
                    log.info(
                        "request",
                        method=scope["method"],
                        path=scope["path"][:256],
                        status=status,
                        seconds=round(time.monotonic() - started, 4),
                    )


def _bounded(receive: Receive, limit: int) -> Receive:
    """Counts what arrives, whatever Content-Length says."""
    num_bytes = 0

    async def bounded() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > limit:
            raise HTTPException(413, f"The body exceeds {limit} bytes.")
        return message

    return bounded
