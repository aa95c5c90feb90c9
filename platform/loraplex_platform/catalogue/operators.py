"""vLLM's `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, for the platform's staff."""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import Field

from loraplex_platform.auth.dependencies import administrator_with
from loraplex_platform.catalogue.endpoints import Desk
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.errors import InvalidRequest, PermissionDenied
from loraplex_platform.kit.principal import Administrator, Principal
from loraplex_platform.kit.texts import Stored
from loraplex_platform.rest.route import ERRORS
from loraplex_platform.tenants.service import TenantService

router = APIRouter(prefix="/v1", responses=ERRORS)
Staff = Annotated[Administrator, Depends(administrator_with("tenants", is_staff=True))]
TenantName = Annotated[str | None, Query(max_length=64)]


class LoadBody(Body):
    """vLLM's, and the tenant, which may stand in the query for tools that know no such field."""

    lora_name: Annotated[Stored, Field(min_length=1)]
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    load_inplace: bool = False
    tenant: Stored | None = None


class UnloadBody(Body):
    lora_name: Annotated[Stored, Field(min_length=1)]
    lora_int_id: int | None = None  # vLLM's, which means nothing here
    tenant: Stored | None = None


@router.post("/load_lora_adapter")
async def load_lora_adapter(
    body: LoadBody, by: Staff, request: Request, desk: Desk, tenant: TenantName = None
) -> PlainTextResponse:
    """Add a folder of this machine; in place, it becomes the name's current version."""
    principal = await _owner(request, body.tenant or tenant)
    folder = allowed(body.lora_path, desk.folders)
    if not body.load_inplace:
        await desk.catalogue.check_free(principal, body.lora_name)
    await desk.add(principal, body.lora_name, folder, by=by.actor, activate=True)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/unload_lora_adapter")
async def unload_lora_adapter(
    body: UnloadBody, by: Staff, request: Request, desk: Desk, tenant: TenantName = None
) -> PlainTextResponse:
    principal = await _owner(request, body.tenant or tenant)
    await desk.delete(principal, body.lora_name, by=by.actor)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def allowed(path: str, folders: tuple[Path, ...]) -> Path:
    """The folder itself, every link followed; raises unless it lies inside a configured one."""
    if "\0" not in path:
        folder = Path(path).resolve()
        if any(folder.is_relative_to(root.resolve()) for root in folders):
            return folder
    raise PermissionDenied(
        "Adapters are loaded from the folders of LORAPLEX_ADAPTER_FOLDERS only.",
        param="lora_path",
        code="path_not_allowed",
    )


async def _owner(request: Request, tenant: str | None) -> Principal:
    if tenant is None:
        raise InvalidRequest(
            "'tenant' is required, in the body or the query.",
            param="tenant",
            code="missing_required_parameter",
        )
    tenants: TenantService = request.app.state.tenants
    return Principal((await tenants.get(tenant)).id, "", "")
