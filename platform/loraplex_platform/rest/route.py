"""What the routes of the admin API share: idempotency, preconditions, pages, the error shape."""

import hashlib
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, StringConstraints
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import StreamingResponse

from loraplex_platform.auth.dependencies import Authenticated
from loraplex_platform.kit.revisions import HasRevision
from loraplex_platform.rest.idempotency import Answer, Claim, Idempotency

REPLAYED_HEADERS = frozenset({"content-type", "etag", "location"})


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The shape of every error."""

    error: ErrorDetail


def _errors(kind: str) -> dict[int | str, dict[str, Any]]:
    """How a route may fail that is opened by this kind of key; every error has one shape."""
    texts = {
        400: "The request is not valid.",
        401: f"No {kind}, or not a valid one.",
        403: f"The {kind} does not allow this.",
        404: "There is no such object, or it belongs to another tenant.",
        408: "The body did not arrive in time.",
        409: "The object's state does not allow this.",
        412: "The object changed since it was read.",
        413: "The body is too large.",
        422: "The Idempotency-Key was used with another request.",
        429: "Too many wrong keys from this address, or a limit is reached.",
        431: "The headers are too many or too large.",
        500: "The server failed.",
        503: "The server cannot do this at the moment.",
        504: "There was not enough time.",
    }
    return {code: _failure(text) for code, text in texts.items()}


def _failure(text: str) -> dict[str, Any]:
    return {"model": ErrorBody, "description": text}


ERRORS = _errors("admin key")
TENANT_ERRORS = _errors("API key")
RANGES: dict[int | str, dict[str, Any]] = {  # of what is read in parts
    206: {"description": "The part that the Range header asks for."},
    416: _failure("The range lies outside of the file."),
}
PREFIX = "/api/admin/v1"


def admin_router() -> APIRouter:
    """A router of the admin API: its realm, its error shape, its idempotency."""
    return APIRouter(prefix=PREFIX, route_class=AdminRoute, responses=ERRORS)


class Replayed(Exception):
    """The request was answered before; carries the answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class AdminRoute(APIRoute):
    """Answers a repeated request as the first time, once `once` has found it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                response = await handle(request)
            except Replayed as replayed:
                return _again(replayed.answer)
            except BaseException:
                if (claim := _claim_of(request)) is not None:
                    await _idempotency(request).release(claim)
                raise
            if (claim := _claim_of(request)) is not None:
                await _idempotency(request).finish(claim, _answer_of(response))
            return response

        return handler


async def once(
    request: Request,
    by: Authenticated,
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")
    ] = None,
) -> None:
    """Remembers the answer under the caller's Idempotency-Key."""
    if idempotency_key is None:
        return
    content = request.url.query.encode() + b"\n" + await request.body()
    await claim(request, by.actor.id, idempotency_key, hashlib.sha256(content).hexdigest())


async def claim(request: Request, caller_id: str, key: str | None, fingerprint: str) -> None:
    """Go ahead with a request whose content has this fingerprint; raises Replayed."""
    if key is None:
        return
    route = f"{request.method} {request.url.path}"
    claimed = Claim(caller_id, route, key, fingerprint)
    answer = await _idempotency(request).begin(claimed)
    if answer is not None:
        raise Replayed(answer)
    request.state.claim = claimed


Once = Depends(once)


Tag = Annotated[str, StringConstraints(pattern=r'^(\*|(W/)?"?[0-9]{1,9}"?)$')]


def if_match(
    if_match: Annotated[Tag | SkipJsonSchema[None], Header()] = None,
) -> int | None:
    """The revision that the caller has seen; None: any."""
    if if_match is None or if_match == "*":
        return None
    return int(if_match.removeprefix("W/").strip('"'))


Revision = Annotated[int | None, Depends(if_match)]


def tag(response: Response, row: HasRevision) -> None:
    response.headers["etag"] = f'"{row.revision}"'


class Paging(NamedTuple):
    """Which part of a list: at most `limit` items after the one with the id `after`."""

    after: str | None
    limit: int


def paging(
    after: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_]{1,64}$")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Paging:
    return Paging(after, limit)


Pages = Annotated[Paging, Depends(paging)]


class Deleted(BaseModel):
    """An object that is no more."""

    id: str
    deleted: Literal[True] = True


def _idempotency(request: Request) -> Idempotency:
    service: Idempotency = request.app.state.idempotency
    return service


def _claim_of(request: Request) -> Claim | None:
    claim: Claim | None = getattr(request.state, "claim", None)
    return claim


def _answer_of(response: Response) -> Answer:
    assert not isinstance(response, StreamingResponse), "a stream cannot be replayed"
    headers = [f"{k}: {v}" for k, v in response.headers.items() if k in REPLAYED_HEADERS]
    return Answer(response.status_code, headers, bytes(response.body))


def _again(answer: Answer) -> Response:
    headers = dict(line.split(": ", 1) for line in answer.headers)
    return Response(answer.body, answer.status, {**headers, "idempotent-replayed": "true"})
