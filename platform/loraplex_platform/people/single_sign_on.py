"""Signing in elsewhere, where the settings name a provider."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from loraplex_platform.config import Settings
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.people.sessions import SessionService

CALLBACK = "/admin/oidc/callback"


@dataclass(frozen=True, slots=True)
class Provider:
    """Who signs people in, and what we are to it."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    redirect_uri: str
    new_role: str | None = None  # of the platform's staff; None: who is not invited stays out


class SingleSignOn(Protocol):
    """What the console needs of it; `people.oidc.OidcSignIn` is the one there is."""

    @property
    def is_secure(self) -> bool: ...

    async def begin(self, then: str) -> tuple[str, str]: ...

    async def finish(
        self, kept: str, query: Mapping[str, str], address: str | None
    ) -> tuple[str, str]: ...


class AuthlibNotInstalled(Exception):
    """LORAPLEX_OIDC_ISSUER is set, but the client is missing: pip install 'loraplex[oidc]'."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def open_single_sign_on(
    settings: Settings, sessions: SessionService, secrets: Secrets, clock: Clock
) -> SingleSignOn | None:
    """None where no provider is named."""
    if settings.oidc_issuer is None:
        return None
    provider = Provider(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id or "",
        client_secret=settings.oidc_client_secret or "",
        redirect_uri=f"{(settings.public_url or '').rstrip('/')}{CALLBACK}",
        new_role=settings.oidc_new_role,
    )
    try:  # by name: Authlib belongs to an extra
        module = import_module("loraplex_platform.people.oidc")
    except ModuleNotFoundError as error:
        raise AuthlibNotInstalled from error
    sign_in: SingleSignOn = module.OidcSignIn(provider, sessions, secrets, clock)
    return sign_in
