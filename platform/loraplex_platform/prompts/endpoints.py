"""`/v1/stored_prompts`: what a project asked and was answered, where its tenant has it kept."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel

from loraplex_platform.auth.dependencies import actor_of, principal_with
from loraplex_platform.kit.pagination import Listed, Page, page_of
from loraplex_platform.kit.principal import Principal
from loraplex_platform.prompts.models import StoredPrompt
from loraplex_platform.prompts.service import PromptService
from loraplex_platform.rest.route import TENANT_ERRORS

router = APIRouter(prefix="/v1/stored_prompts", responses=TENANT_ERRORS)
Reader = Annotated[Principal, Depends(principal_with("prompts"))]


class StoredPromptObject(Listed):
    """Its id is that of the request."""

    object: Literal["stored_prompt"] = "stored_prompt"
    key_id: str
    model: str
    asked: dict[str, Any]
    answers: list[str]
    created_at: datetime

    @classmethod
    def of(cls, row: StoredPrompt) -> "StoredPromptObject":
        facts = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)}
        return cls(id=row.request_id, **facts)


class DeletedPrompt(BaseModel):
    id: str
    deleted: Literal[True] = True


def prompts_of(request: Request) -> PromptService:
    service: PromptService = request.app.state.prompts
    return service


Prompts = Annotated[PromptService, Depends(prompts_of)]


@router.get("")
async def list_prompts(
    principal: Reader,
    prompts: Prompts,
    after: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_]{1,64}$")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Page[StoredPromptObject]:
    """Oldest first."""
    rows = await prompts.page(principal, after=after, limit=limit + 1)
    return page_of([StoredPromptObject.of(row) for row in rows], limit)


@router.get("/{request_id}")
async def get_prompt(request_id: str, principal: Reader, prompts: Prompts) -> StoredPromptObject:
    return StoredPromptObject.of(await prompts.get(principal, request_id))


@router.delete("/{request_id}")
async def delete_prompt(
    request_id: str, principal: Reader, request: Request, prompts: Prompts
) -> DeletedPrompt:
    await prompts.delete(principal, request_id, by=actor_of(request, principal))
    return DeletedPrompt(id=request_id)
