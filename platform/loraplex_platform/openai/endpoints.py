"""`/v1`: models, chat completions, completions."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from loraplex_engine.errors import EngineError
from loraplex_platform.auth.dependencies import InferencePrincipal, actor_of
from loraplex_platform.catalogue.endpoints import Desk, Writer
from loraplex_platform.errors import error_object, from_engine
from loraplex_platform.kit.errors import PlatformError
from loraplex_platform.kit.principal import Principal
from loraplex_platform.openai.answer_schemas import (
    ChatCompletion,
    Completion,
    DeletedModel,
    LiveRequestList,
    ModelList,
    ModelObject,
    RequestExplanation,
    Told,
)
from loraplex_platform.openai.answers import Json
from loraplex_platform.openai.live_requests import LiveRequests
from loraplex_platform.openai.models import ModelService
from loraplex_platform.openai.order import Caller
from loraplex_platform.openai.reply import Reply
from loraplex_platform.openai.schemas import ChatRequest, CompletionRequest
from loraplex_platform.openai.service import InferenceService
from loraplex_platform.rest.route import TENANT_ERRORS

router = APIRouter(prefix="/v1", responses=TENANT_ERRORS)
CLIENT_CLOSED_REQUEST = 499  # only the log sees it
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def inference_of(request: Request) -> InferenceService:
    service: InferenceService = request.app.state.inference
    return service


def models_of(request: Request) -> ModelService:
    service: ModelService = request.app.state.models
    return service


def live_of(request: Request) -> LiveRequests:
    service: LiveRequests = request.app.state.live_requests
    return service


Live = Annotated[LiveRequests, Depends(live_of)]
Inference = Annotated[InferenceService, Depends(inference_of)]
Models = Annotated[ModelService, Depends(models_of)]


def _generated(whole: type[Told]) -> dict[int | str, dict[str, Any]]:
    """Whole, or as events; written by hand, since it is made for every request."""
    content: dict[str, Any] = {"text/event-stream": {}}
    told = {"model": whole, "content": content, "description": "The answer, or its events."}
    return {200: told}


@router.get("/models", response_model=ModelList)
async def list_models(principal: InferencePrincipal, models: Models) -> Json:
    return {"object": "list", "data": await models.list(principal)}


@router.get("/models/{model_id:path}", response_model=ModelObject)
async def get_model(model_id: str, principal: InferencePrincipal, models: Models) -> Json:
    return await models.get(principal, model_id)


@router.delete("/models/{model_id:path}", response_model=DeletedModel)
async def delete_model(
    model_id: str, principal: Writer, request: Request, models: Models, desk: Desk
) -> Json:
    """The tenant's own adapter, under OpenAI's name for it."""
    await models.get(principal, model_id)
    await desk.delete(principal, model_id, by=actor_of(request, principal))
    return {"id": model_id, "object": "model", "deleted": True}


@router.post("/chat/completions", responses=_generated(ChatCompletion))
async def create_chat_completion(
    body: ChatRequest, principal: InferencePrincipal, request: Request, inference: Inference
) -> Response:
    reply = await inference.chat(_caller(request, principal), body)
    return await _respond(request, reply, is_stream=bool(body.stream))


@router.post("/completions", responses=_generated(Completion))
async def create_completion(
    body: CompletionRequest, principal: InferencePrincipal, request: Request, inference: Inference
) -> Response:
    reply = await inference.complete(_caller(request, principal), body)
    return await _respond(request, reply, is_stream=bool(body.stream))


@router.get("/requests", response_model=LiveRequestList)
async def list_requests(principal: InferencePrincipal, live: Live) -> Json:
    return live.all_of(principal)


@router.get("/requests/{request_id}/explain", response_model=RequestExplanation)
async def explain_request(request_id: str, principal: InferencePrincipal, live: Live) -> Json:
    return await live.explain(principal, request_id)


def _caller(request: Request, principal: Principal) -> Caller:
    state = request.state
    return Caller(principal, state.request_id, state.client_request_id)


async def _respond(request: Request, reply: Reply, *, is_stream: bool) -> Response:
    """The whole answer, or a stream from its first chunk on: until then errors have a status."""
    if not is_stream:
        whole = await _unless_gone(request, reply, reply.whole())
        return _gone() if whole is None else JSONResponse(whole, headers=dict(reply.headers))
    chunks = reply.chunks()
    first = await _unless_gone(request, reply, _first(chunks))
    return _gone() if first is None else EventStream(reply, first, chunks)


async def _first(chunks: AsyncIterator[Json]) -> Json:
    return await anext(chunks)


async def _unless_gone(
    request: Request, reply: Reply, work: Coroutine[Any, Any, Json]
) -> Json | None:
    """The work's result; None when the client hung up first."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            reply.abandon()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _gone() -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


class EventStream(StreamingResponse):
    """Server-sent events in OpenAI's shape; abandons the reply if it cannot be sent to its end."""

    media_type = "text/event-stream"

    def __init__(self, reply: Reply, first: Json, rest: AsyncIterator[Json]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no", **reply.headers}
        super().__init__(_events(first, rest), headers=headers)
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reply.abandon()


async def _events(first: Json, rest: AsyncIterator[Json]) -> AsyncIterator[str]:
    yield _event(first)
    try:
        async for chunk in rest:
            yield _event(chunk)
    except EngineError as error:
        yield _event(error_object(from_engine(error)))
    except PlatformError as error:
        yield _event(error_object(error))
    else:
        yield "data: [DONE]\n\n"


def _event(data: Json) -> str:
    return f"data: {_encode(data)}\n\n"
