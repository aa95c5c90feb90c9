"""The console: puts its pages behind sign-in, roles and form tokens, and mounts them."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import quote

import structlog
from fastapi import FastAPI
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from loraplex_admin import words
from loraplex_admin.cookies import is_from_here, session_token
from loraplex_admin.once import once
from loraplex_admin.pages import (
    adapters,
    audit,
    batches,
    bills,
    keys,
    limits,
    overview,
    people,
    plans,
    requests,
    sign_in,
    single_sign_on,
    tenants,
    webhooks,
)
from loraplex_admin.services import Services
from loraplex_admin.visit import PREFIX, Page, Visit, is_part, with_query
from loraplex_platform.db.database import UNREACHABLE
from loraplex_platform.errors import shape_of
from loraplex_platform.kit.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    PlatformError,
)
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.roles import allows
from loraplex_platform.people.schemas import Visitor
from loraplex_platform.people.sessions import SessionService

log = structlog.get_logger(__name__)
HERE = Path(__file__).parent
PAGES: tuple[Page, ...] = (
    *sign_in.PAGES,
    *single_sign_on.PAGES,
    *overview.PAGES,
    *tenants.PAGES,
    *limits.PAGES,
    *keys.PAGES,
    *people.PAGES,
    *plans.PAGES,
    *webhooks.PAGES,
    *adapters.PAGES,
    *batches.PAGES,
    *bills.PAGES,
    *requests.PAGES,
    *audit.PAGES,
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
MAX_FIELDS = 50
FILTERS: tuple[Callable[..., str], ...] = (
    words.bytes_text,
    words.dimension,
    words.drift,
    words.left,
    words.measure,
    words.money,
    words.number,
    words.quantity,
    words.reason,
    words.seconds,
    words.utc,
)


async def show_nothing(_: Visit) -> Response:
    raise NotFound("there is no such page")


LOST = Page("GET", "/{path:path}", show_nothing)


def mount_console(app: FastAPI) -> None:
    """Serve the console of this API under /admin."""
    console = Mount(PREFIX, create_console(Services.of(app.state)))
    app.router.routes.insert(0, console)  # before the API's routes, which are slow to match


def create_console(services: Services) -> Starlette:
    templates = _templates()
    routes = [
        Route(page.path, _guarded(page, services, templates), methods=[page.method])
        for page in (*PAGES, LOST)
    ]
    static = Mount("/static", StaticFiles(directory=HERE / "static"))
    return Starlette(routes=[static, *routes])


@cache
def _templates() -> Environment:
    """Compiled once; they hold nothing of an app."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=words.plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for filter in FILTERS:
        templates.filters[filter.__name__] = filter
    templates.globals |= {"with_query": with_query, "once": lambda: new_id("form")}
    return templates


def _guarded(
    page: Page, services: Services, templates: Environment
) -> Callable[[Request], Awaitable[Response]]:
    """Nothing of the page runs before its visitor is known and allowed."""

    async def answer(request: Request) -> Response:
        visit = Visit(request, services, templates, None)
        try:
            visit = Visit(request, services, templates, await _visitor(services, request))
            response = await _shown(page, visit)
        except PlatformError as error:
            response = visit.render("error.html", shape_of(error).status, error=error)
        except UNREACHABLE as error:
            log.warning("database_away", path=request.url.path, error=type(error).__name__)
            away = Overloaded("The database is away. Try again in a moment.")
            response = visit.render("error.html", shape_of(away).status, error=away)
        response.headers.update(HEADERS)
        return response

    return answer


async def _visitor(services: Services, request: Request) -> Visitor | None:
    token = session_token(request)
    if token is None:
        return None
    return await services.sessions.visitor(token, is_at_work=not is_part(request))


async def _shown(page: Page, visit: Visit) -> Response:
    request, visitor = visit.request, visit.visitor
    if page.permission is not None and visitor is None:
        return _to_sign_in(request)
    _check_texts(request.path_params.values())
    if page.permission is not None and visitor is not None:
        allows(visitor.administrator, page.permission)
        if page.is_staff and visitor.administrator.tenant_id is not None:
            raise NotFound("there is no such page")
    if page.method == "GET":
        return await page.show(visit)
    if not is_from_here(request):
        raise PermissionDenied("This form was not sent from the console.")
    async with request.form(max_files=page.max_files, max_fields=MAX_FIELDS) as form:
        if page.permission is not None and visitor is not None:
            _check_token(visit.services.sessions, visitor, form)
        _check_texts(form.values())
        return await once(replace(visit, form=form), page.show)


def _check_texts(sent: Iterable[object]) -> None:
    """PostgreSQL takes no NUL, so nobody's database is asked for one."""
    if any(isinstance(text, str) and "\0" in text for text in sent):
        raise InvalidRequest("That is no text: it has a NUL in it.")


def _check_token(sessions: SessionService, visitor: Visitor, form: FormData) -> None:
    """The form is of this session."""
    presented = form.get("csrf")
    if not isinstance(presented, str) or not sessions.is_form_token(visitor.session_id, presented):
        raise PermissionDenied("This form is not of your session: load the page again.")


def _to_sign_in(request: Request) -> Response:
    """Afterwards back to where one wanted to go; a part of a page sends the whole page there."""
    if is_part(request):
        return Response(status_code=401, headers={"hx-refresh": "true"})
    path = request.url.path.removeprefix(PREFIX)
    wanted = path + (f"?{request.url.query}" if request.url.query else "")
    then = f"?next={quote(wanted)}" if request.method == "GET" and wanted not in ("", "/") else ""
    return RedirectResponse(f"{PREFIX}/sign-in{then}", 303)
