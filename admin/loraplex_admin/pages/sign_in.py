"""In and out, and the one-time link to a password."""

from starlette.responses import Response

from loraplex_admin.cookies import clear_session, is_private, session_token, set_session
from loraplex_admin.visit import Page, Visit
from loraplex_platform.kit.errors import (
    InvalidLogin,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    RateLimited,
)


async def show_sign_in(visit: Visit) -> Response:
    return form(visit)


async def sign_in(visit: Visit) -> Response:
    """A new session each time: one that was planted before is worth nothing."""
    _needs_privacy(visit)
    request, sessions = visit.request, visit.services.sessions
    address = request.state.address
    try:
        token = await sessions.open(visit.text("email"), str(visit.form.get("password")), address)
    except InvalidLogin as error:
        return form(visit, 401, error.message)
    except RateLimited as error:
        wait = f"{error.retry_after_s:.0f}" if error.retry_after_s else "60"
        response = form(visit, 429, f"Too many wrong passwords. Try again in {wait} seconds.")
        response.headers["retry-after"] = wait
        return response
    old = session_token(request)
    if old is not None:
        await sessions.close(old)
    response = visit.goto(inside(visit.text("next")))
    set_session(request, response, token)
    return response


async def sign_out(visit: Visit) -> Response:
    token = session_token(visit.request)
    if token is not None:
        await visit.services.sessions.close(token)
    response = visit.goto("/sign-in", done="signed-out")
    clear_session(visit.request, response)
    return response


async def show_link(visit: Visit) -> Response:
    return visit.render("link.html", problem=None)


async def redeem_link(visit: Visit) -> Response:
    """The link carries its token behind the #, where no server logs it."""
    _needs_privacy(visit)
    password = str(visit.form.get("password"))
    token = visit.text("token").rpartition("#")[2]
    if password != str(visit.form.get("again")):
        return visit.render("link.html", 400, problem="The two passwords differ.")
    try:
        await visit.services.people.redeem(token, password, visit.request.state.address)
    except (NotFound, InvalidRequest) as error:
        return visit.render("link.html", 400, problem=error.message)
    return visit.goto("/sign-in", done="password")


def form(visit: Visit, status: int = 200, problem: str | None = None) -> Response:
    wanted = visit.text("next") or visit.query.get("next", "")
    return visit.render("sign_in.html", status, problem=problem, next=inside(wanted))


def inside(path: str) -> str:
    """A page of the console, whatever a link says."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


def _needs_privacy(visit: Visit) -> None:
    if not is_private(visit.request):
        raise PermissionDenied(
            "A password crosses HTTPS only: open the console through your TLS proxy, "
            "or on the machine itself at http://127.0.0.1."
        )


PAGES = (
    Page("GET", "/sign-in", show_sign_in, permission=None),
    Page("POST", "/sign-in", sign_in, permission=None),
    Page("POST", "/sign-out", sign_out),
    Page("GET", "/link", show_link, permission=None),
    Page("POST", "/link", redeem_link, permission=None),
)
