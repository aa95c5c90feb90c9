"""`/v1/batches`."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request

from loraplex_platform.auth.dependencies import actor_of, principal_with
from loraplex_platform.batches.schemas import BatchObject, BatchQuery, CreateBatch
from loraplex_platform.batches.service import BatchService
from loraplex_platform.kit.pagination import Page
from loraplex_platform.kit.principal import Principal
from loraplex_platform.rest.route import TENANT_ERRORS

router = APIRouter(prefix="/v1/batches", responses=TENANT_ERRORS)
BatchesPrincipal = Annotated[Principal, Depends(principal_with("batches"))]


def batches_of(request: Request) -> BatchService:
    service: BatchService = request.app.state.batches
    return service


Batches = Annotated[BatchService, Depends(batches_of)]


@router.post("")
async def create_batch(
    body: CreateBatch,
    principal: BatchesPrincipal,
    request: Request,
    batches: Batches,
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")
    ] = None,
) -> BatchObject:
    return await batches.create(principal, body, idempotency_key, by=actor_of(request, principal))


@router.get("")
async def list_batches(
    principal: BatchesPrincipal, batches: Batches, query: Annotated[BatchQuery, Query()]
) -> Page[BatchObject]:
    return await batches.list(principal, query)


@router.get("/{batch_id}")
async def get_batch(batch_id: str, principal: BatchesPrincipal, batches: Batches) -> BatchObject:
    return await batches.get(principal, batch_id)


@router.post("/{batch_id}/cancel")
async def cancel_batch(
    batch_id: str, principal: BatchesPrincipal, request: Request, batches: Batches
) -> BatchObject:
    return await batches.cancel(principal, batch_id, by=actor_of(request, principal))
