"""Around every request: an id of our own, the caller's address, a bounded body, a line in the log."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loraplex_platform.auth.networks import Network, client_address
from loraplex_platform.errors import error_response
from loraplex_platform.kit.errors import HeadersTooLarge, InvalidRequest, PlatformError
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.json_depth import MAX_DEPTH, JsonDepth
from loraplex_platform.kit.redaction import without_keys

log = structlog.get_logger(__name__)
QUIET = frozenset({"/livez", "/readyz", "/metrics"})
UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 * 1024
BODY_S = 60.0  # for a body to arrive
LARGER_BODY_S = 900.0  # the same for an upload
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

        refusal = _refusal(scope)
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                if refusal is not None:
                    await error_response(refusal)(scope, receive, send_with_id)
                    return
                larger = self._larger.get(scope["path"])
                limit = self._max_body_bytes if larger is None else larger
                wait_s = BODY_S if larger is None else LARGER_BODY_S
                bounded = _bounded(receive, limit, wait_s)
                if "multipart/" not in headers.get("content-type", ""):
                    bounded = _shallow(bounded)
                await self._app(scope, bounded, send_with_id)
            except ClientDisconnect:
                status = 400  # it hung up amid its body: nobody is there for an answer
            finally:
                if scope["path"] not in QUIET:
                    log.info(
                        "request",
                        method=scope["method"],
                        path=without_keys(scope["path"])[:256],
                        status=status,
                        seconds=round(time.monotonic() - started, 4),
                    )


def _refusal(scope: Scope) -> PlatformError | None:
    """What is wrong with the head of a request."""
    headers = scope["headers"]
    num_bytes = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > MAX_HEADERS or num_bytes > MAX_HEADER_BYTES:
        return HeadersTooLarge()
    if b"%00" in scope["query_string"]:
        return InvalidRequest("A query holds no NUL.")  # PostgreSQL takes none
    names = {name for name, _ in headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        return InvalidRequest("A body has a length or is chunked, not both.")
    return None


def _bounded(receive: Receive, limit: int, wait_s: float) -> Receive:
    """Counts what arrives, whatever Content-Length says, and waits for the whole only so long."""
    num_bytes, deadline_s = 0, time.monotonic() + wait_s
    is_whole = False

    async def bounded() -> Message:
        nonlocal num_bytes, is_whole
        if is_whole:
            return await receive()  # how one learns that the client hangs up
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                message = await receive()
        except TimeoutError as error:
            raise HTTPException(408, f"The body did not arrive within {wait_s:g} s.") from error
        num_bytes += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if num_bytes > limit:
            raise HTTPException(413, f"The body exceeds {limit} bytes.")
        return message

    return bounded


def _shallow(receive: Receive) -> Receive:
    """Refuses JSON that is nested too deep for whoever walks through it."""
    nesting = JsonDepth()

    async def shallow() -> Message:
        message = await receive()
        if not nesting.feed(message.get("body", b"")):
            raise HTTPException(400, f"The body is nested deeper than {MAX_DEPTH} levels.")
        return message

    return shallow
