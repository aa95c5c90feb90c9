"""The session's cookie, and whether a form comes from one of our own pages."""

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from loraplex_platform.people.single_sign_on import CALLBACK

SECURE = "__Host-loraplex"  # browsers take it over HTTPS only, for this host alone
LOOPBACK = "loraplex-console"  # plain HTTP, on the machine itself
ATTEMPT = "loraplex-sign-in"  # under way at a provider
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def session_token(request: Request) -> str | None:
    return request.cookies.get(SECURE) or request.cookies.get(LOOPBACK)


def set_session(
    request: Request, response: Response, token: str, *, secure: bool | None = None
) -> None:
    """Lax: a link in a mail finds its reader signed in."""
    secure = is_https(request) if secure is None else secure
    name = SECURE if secure else LOOPBACK
    response.set_cookie(name, token, path="/", secure=secure, httponly=True, samesite="lax")


def clear_session(request: Request, response: Response) -> None:
    response.delete_cookie(SECURE, path="/", secure=True, httponly=True, samesite="lax")
    response.delete_cookie(LOOPBACK, path="/", httponly=True, samesite="lax")


def set_attempt(response: Response, kept: str, *, secure: bool) -> None:
    """Lax: the way back from the provider is a link on another site."""
    response.set_cookie(
        ATTEMPT, kept, max_age=600, path=CALLBACK, secure=secure, httponly=True, samesite="lax"
    )


def attempt_of(request: Request) -> str:
    return request.cookies.get(ATTEMPT, "")


def clear_attempt(response: Response, *, secure: bool) -> None:
    response.delete_cookie(ATTEMPT, path=CALLBACK, secure=secure, httponly=True, samesite="lax")


def is_https(request: Request) -> bool:
    """Also behind a proxy that ends TLS: the browser names its scheme in each form's Origin."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def is_private(request: Request) -> bool:
    """Whether a password may cross this connection."""
    return is_https(request) or request.url.hostname in LOOPBACK_HOSTS


def is_from_here(request: Request) -> bool:
    """Fails closed: a browser says at least one of the two with every form."""
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc == request.headers.get("host")
    return request.headers.get("sec-fetch-site") == "same-origin"
