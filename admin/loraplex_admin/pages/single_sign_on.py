"""Out to the provider, and back from it."""

from starlette.responses import RedirectResponse, Response

from loraplex_admin.cookies import (
    attempt_of,
    clear_attempt,
    session_token,
    set_attempt,
    set_session,
)
from loraplex_admin.pages.sign_in import form, inside
from loraplex_admin.visit import Page, Visit
from loraplex_platform.kit.errors import InvalidLogin, NotFound
from loraplex_platform.people.single_sign_on import SingleSignOn


async def begin(visit: Visit) -> Response:
    provider = _provider(visit)
    url, kept = await provider.begin(inside(visit.query.get("next", "")))
    response = RedirectResponse(url, 303)
    set_attempt(response, kept, secure=provider.is_secure)
    return response


async def finish(visit: Visit) -> Response:
    """A new session each time, as with a password."""
    provider, request = _provider(visit), visit.request
    try:
        token, then = await provider.finish(
            attempt_of(request), dict(visit.query), request.state.address
        )
    except InvalidLogin as error:
        response: Response = form(visit, 401, error.message)
    else:
        old = session_token(request)
        if old is not None:
            await visit.services.sessions.close(old)
        response = visit.goto(then)
        set_session(request, response, token, secure=provider.is_secure)
    clear_attempt(response, secure=provider.is_secure)
    return response


def _provider(visit: Visit) -> SingleSignOn:
    if visit.services.single_sign_on is None:
        raise NotFound("there is no such page")
    return visit.services.single_sign_on


PAGES = (
    Page("GET", "/oidc", begin, permission=None),
    Page("GET", "/oidc/callback", finish, permission=None),
)
