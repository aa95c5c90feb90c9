"""A form that is sent twice, by a double click or a reload, acts once and is answered twice."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from starlette.datastructures import UploadFile
from starlette.responses import Response

from loraplex_admin.visit import Review, Visit
from loraplex_platform.kit.errors import StillRunning
from loraplex_platform.rest.idempotency import Answer, Claim

POLL_S = 0.1
POLLS = 100  # then whoever sent it twice is told that it is at work
READ_BYTES = 1 << 20  # of a file at a time
KEPT_HEADERS = ("content-type", "location")


async def once(visit: Visit, act: Callable[[Visit], Awaitable[Response]]) -> Response:
    """Each page gives each of its forms a token; one without it acts every time."""
    claim = await _claim(visit)
    if claim is None:
        return await act(visit)
    earlier = await _begin(visit, claim)
    if earlier is not None:
        headers = dict(header.split(": ", 1) for header in earlier.headers)
        return Response(earlier.body, earlier.status, headers)
    idempotency, response = visit.services.idempotency, None
    try:
        response = await act(visit)
    finally:
        if response is None or isinstance(response, Review):
            await idempotency.release(claim)
    if isinstance(response, Review):
        return response
    headers_kept = [f"{k}: {v}" for k, v in response.headers.items() if k in KEPT_HEADERS]
    answer = Answer(response.status_code, headers_kept, bytes(response.body))
    await idempotency.finish(claim, answer)
    return response


async def _claim(visit: Visit) -> Claim | None:
    """What was sent is part of the key: the same form with other values is another one."""
    token = visit.text("once")
    if not token or visit.visitor is None:
        return None
    sent = [
        (name, value if isinstance(value, str) else await _digest_of(value))
        for name, value in visit.form.multi_items()
    ]
    digest = hashlib.sha256(urlencode(sent).encode(errors="surrogatepass")).hexdigest()
    route = f"POST {visit.request.url.path}"
    return Claim(visit.visitor.session_id, route, digest, digest)


async def _digest_of(file: UploadFile) -> str:
    digest = hashlib.sha256()
    while chunk := await file.read(READ_BYTES):
        digest.update(chunk)
    await file.seek(0)
    return digest.hexdigest()


async def _begin(visit: Visit, claim: Claim) -> Answer | None:
    """The answer of the same form; waits for one that is still at work."""
    for _ in range(POLLS):
        try:
            return await visit.services.idempotency.begin(claim)
        except StillRunning:
            await asyncio.sleep(POLL_S)
    raise StillRunning
