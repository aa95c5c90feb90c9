"""`/v1/adapters`."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from loraplex_platform.auth.dependencies import actor_of, principal_with
from loraplex_platform.catalogue.desk import DRAIN_S, AdapterDesk
from loraplex_platform.catalogue.schemas import (
    AdapterDetail,
    AdapterObject,
    AdapterPatch,
    AdapterQuery,
    DeletedAdapter,
    UploadForm,
)
from loraplex_platform.catalogue.service import Entry
from loraplex_platform.catalogue.upload import ARCHIVED, PARTS, SEPARATE, receive
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.kit.principal import Principal
from loraplex_platform.rest.forms import form_body
from loraplex_platform.rest.route import TENANT_ERRORS, AdminRoute, Revision, claim, tag

router = APIRouter(prefix="/v1/adapters", route_class=AdminRoute, responses=TENANT_ERRORS)
Reader = Annotated[Principal, Depends(principal_with("adapters:read"))]
Writer = Annotated[Principal, Depends(principal_with("adapters:write"))]
MAX_PARTS = 8


def desk_of(request: Request) -> AdapterDesk:
    desk: AdapterDesk = request.app.state.adapters
    return desk


Desk = Annotated[AdapterDesk, Depends(desk_of)]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")
]


@router.post("", status_code=201, openapi_extra=form_body(UploadForm, SEPARATE, ARCHIVED))
async def create_adapter(
    principal: Writer,
    request: Request,
    response: Response,
    desk: Desk,
    idempotency_key: IdempotencyKey = None,
) -> AdapterDetail:
    """A new name, or a new version of one."""
    with desk.catalogue.draft() as folder:
        async with request.form(max_files=len(PARTS), max_fields=MAX_PARTS) as form:
            received = await receive(form, folder)
        await claim(request, principal.key_id, idempotency_key, received.fingerprint)
        fields, by = received.fields, actor_of(request, principal)
        published = await desk.add(principal, fields.name, folder, by=by, activate=fields.activate)
    tag(response, published.name)
    response.status_code = 201 if published.is_new else 200
    return AdapterDetail.with_versions(published.name, [published.version])


@router.get("")
async def list_adapters(
    principal: Reader, desk: Desk, query: Annotated[AdapterQuery, Query()]
) -> Page[AdapterObject]:
    rows = await desk.catalogue.page(principal, after=query.after, limit=query.limit + 1)
    return page_of([AdapterObject.of(row) for row in rows], query.limit)


@router.post("/{name:path}/rollback")
async def roll_back(
    name: str, principal: Writer, request: Request, response: Response, desk: Desk
) -> AdapterDetail:
    by = actor_of(request, principal)
    return _detail(await desk.catalogue.roll_back(principal, name, by=by), response)


@router.post("/{name:path}/preload", status_code=202)
async def preload(name: str, principal: Writer, request: Request, desk: Desk) -> AdapterDetail:
    """Have the engine load the version before the first request asks for it."""
    entry = await desk.preload(principal, name, by=actor_of(request, principal))
    return AdapterDetail.with_versions(*entry)


@router.get("/{name:path}")
async def get_adapter(
    name: str, principal: Reader, response: Response, desk: Desk
) -> AdapterDetail:
    return _detail(await desk.catalogue.get(principal, name), response)


@router.patch("/{name:path}")
async def change_adapter(
    name: str,
    body: AdapterPatch,
    principal: Writer,
    request: Request,
    response: Response,
    desk: Desk,
    revision: Revision,
) -> AdapterDetail:
    values = body.model_dump(exclude_unset=True)
    by = actor_of(request, principal)
    entry = await desk.change(principal, name, values, by=by, revision=revision)
    return _detail(entry, response)


@router.delete("/{name:path}")
async def delete_adapter(
    name: str,
    principal: Writer,
    request: Request,
    desk: Desk,
    drain_s: Annotated[float, Query(ge=0, le=3600)] = DRAIN_S,
) -> DeletedAdapter:
    by = actor_of(request, principal)
    await desk.delete(principal, name, by=by, drain_s=drain_s)
    return DeletedAdapter(id=name)


def _detail(entry: Entry, response: Response) -> AdapterDetail:
    tag(response, entry.name)
    return AdapterDetail.with_versions(*entry)
