"""How an endpoint says who may call it: `principal: InferencePrincipal` in its signature."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request

from loraplex_platform.auth.service import KeyService
from loraplex_platform.kit.errors import InvalidApiKey, PermissionDenied
from loraplex_platform.kit.principal import Principal, Scope


def principal_with(scope: Scope) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency: the caller's principal, if its key has this scope."""

    async def principal(request: Request) -> Principal:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise InvalidApiKey(
                "You didn't provide an API key: send it in an Authorization header, "
                "as in «Authorization: Bearer YOUR_KEY»."
            )
        keys: KeyService = request.app.state.keys
        found = await keys.authenticate(key.strip())
        if scope not in found.scopes:
            raise PermissionDenied(f"This key lacks the scope '{scope}'.")
        return found

    return principal


InferencePrincipal = Annotated[Principal, Depends(principal_with("inference"))]
