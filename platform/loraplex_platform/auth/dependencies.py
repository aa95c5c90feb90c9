"""How an endpoint says who may call it: `principal: InferencePrincipal` in its signature."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from loraplex_platform.auth.admin_keys import AdminKeyService
from loraplex_platform.auth.authenticator import Authenticator
from loraplex_platform.kit.errors import InvalidApiKey, PermissionDenied
from loraplex_platform.kit.principal import Actor, Administrator, Permission, Principal, Scope
from loraplex_platform.kit.roles import allows

# For OpenAPI; the keys are read by `_bearer`, whose refusals have our shape.
ApiKeyHeader = Annotated[
    HTTPAuthorizationCredentials | None,
    Security(HTTPBearer(scheme_name="ApiKey", description="lpx_…", auto_error=False)),
]
AdminKeyHeader = Annotated[
    HTTPAuthorizationCredentials | None,
    Security(HTTPBearer(scheme_name="AdminKey", description="lpxadmin_…", auto_error=False)),
]


def principal_with(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    """A dependency: the caller's principal, if its key has this scope."""

    async def principal(request: Request, _: ApiKeyHeader) -> Principal:
        authenticator: Authenticator = request.app.state.authenticator
        found = await authenticator.authenticate(_bearer(request), address_of(request))
        if scope not in found.scopes:
            raise PermissionDenied(f"This key lacks the scope '{scope}'.")
        return found

    return principal


async def administrator(request: Request, _: AdminKeyHeader) -> Administrator:
    """Whose admin key this is, and where they ask from."""
    keys: AdminKeyService = request.app.state.admin_keys
    address = address_of(request)
    found = await keys.authenticate(_bearer(request), address)
    return found.at(request.state.request_id, address)


Authenticated = Annotated[Administrator, Depends(administrator)]


def administrator_with(
    permission: Permission, *, is_staff: bool = False
) -> Callable[[Administrator], Awaitable[Administrator]]:
    """A dependency: the caller, if its role has this permission; tenants' people are not staff."""

    async def check(by: Authenticated) -> Administrator:
        allows(by, permission)
        if is_staff and by.tenant_id is not None:
            raise PermissionDenied("This is for the platform's staff.")
        return by

    return check


def address_of(request: Request) -> str | None:
    """Where the request comes from, as the edge has found out."""
    address: str | None = request.state.address
    return address


def actor_of(request: Request, principal: Principal) -> Actor:
    """Whom the audit log names: the key, and the request it came with."""
    key_id, request_id = principal.key_id, request.state.request_id
    return Actor("key", key_id, request_id=request_id, address=address_of(request))


def _bearer(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise InvalidApiKey(
            "You didn't provide an API key: send it in an Authorization header, "
            "as in «Authorization: Bearer YOUR_KEY»."
        )
    return key.strip()


InferencePrincipal = Annotated[Principal, Depends(principal_with("inference"))]
