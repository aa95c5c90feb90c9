"""Around every request: an id of our own, the caller's address, a bounded body, a line in the log."""

import re
import time
from collections.abc import Mapping, Sequence

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loraplex_platform.auth.networks import Network, client_address
from loraplex_platform.kit.ids import new_id

log = structlog.get_logger(__name__)
QUIET = frozenset({"/livez", "/readyz", "/metrics"})
UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
INTERNAL = b"x-loraplex-"  # headers that only we may set: a client's are dropped


class RequestContext:
    """Sets `request_id`, `client_request_id` and `address` in the request's state.

    Answers carry the first.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        *,
        larger: Mapping[str, int] | None = None,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._larger = larger or {}  # by path: what an upload may have
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, started = new_id("req"), time.monotonic()
        scope["headers"] = [h for h in scope["headers"] if not h[0].startswith(INTERNAL)]
        headers = Headers(scope=scope)
        theirs = headers.get("x-request-id")
        peer = scope["client"][0] if scope.get("client") else None
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["client_request_id"] = theirs and UNPRINTABLE.sub("", theirs)[:128]
        state["address"] = client_address(
            peer, headers.get("x-forwarded-for"), self._trusted_proxies
        )
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
