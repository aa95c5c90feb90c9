"""`/v1/prefixes`: beginnings of prompts that a tenant wants kept warm."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from loraplex_platform.auth.dependencies import InferencePrincipal, actor_of
from loraplex_platform.kit.pagination import Page
from loraplex_platform.prefixes.schemas import (
    DeletedPrefix,
    PrefixObject,
    PrefixQuery,
    PrefixRequest,
)
from loraplex_platform.prefixes.service import PrefixService
from loraplex_platform.rest.route import TENANT_ERRORS

router = APIRouter(prefix="/v1/prefixes", responses=TENANT_ERRORS)


def prefixes_of(request: Request) -> PrefixService:
    service: PrefixService = request.app.state.prefixes
    return service


Prefixes = Annotated[PrefixService, Depends(prefixes_of)]


@router.post("")
async def create_prefix(
    body: PrefixRequest, principal: InferencePrincipal, request: Request, prefixes: Prefixes
) -> PrefixObject:
    return await prefixes.create(principal, body, by=actor_of(request, principal))


@router.get("")
async def list_prefixes(
    principal: InferencePrincipal, prefixes: Prefixes, query: Annotated[PrefixQuery, Query()]
) -> Page[PrefixObject]:
    return await prefixes.page(principal, after=query.after, limit=query.limit)


@router.get("/{prefix_id}")
async def get_prefix(
    prefix_id: str, principal: InferencePrincipal, prefixes: Prefixes
) -> PrefixObject:
    return await prefixes.get(principal, prefix_id)


@router.delete("/{prefix_id}")
async def delete_prefix(
    prefix_id: str, principal: InferencePrincipal, request: Request, prefixes: Prefixes
) -> DeletedPrefix:
    by = actor_of(request, principal)
    return DeletedPrefix(id=await prefixes.delete(principal, prefix_id, by=by))
