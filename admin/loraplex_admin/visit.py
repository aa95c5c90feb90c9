"""One request of one browser: who it is, what it sent, and how it is answered."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from loraplex_admin.services import Services
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Administrator, Permission
from loraplex_platform.people.schemas import Visitor

PREFIX = "/admin"
DONE = {
    "changed": "Changed.",
    "created": "Created.",
    "removed": "Removed.",
    "revoked": "Revoked: the key no longer works.",
    "invited": "Invited.",
    "password": "The password is set. Sign in with it.",
    "signed-out": "You are signed out.",
}


class Change(NamedTuple):
    """A line of a confirmation."""

    what: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Visit:
    request: Request
    services: Services
    templates: Environment
    visitor: Visitor | None = None
    form: FormData = field(default_factory=FormData)

    @property
    def by(self) -> Administrator:
        assert self.visitor is not None, "a page without sign-in acts for nobody"
        state = self.request.state
        return self.visitor.administrator.at(state.request_id, state.address)

    @property
    def query(self) -> QueryParams:
        return self.request.query_params

    @property
    def is_confirmed(self) -> bool:
        return self.form.get("confirmed") == "yes"

    def place(self, name: str) -> str:
        """A part of the path."""
        part: str = self.request.path_params[name]
        return part

    def text(self, name: str, default: str = "") -> str:
        value = self.form.get(name, default)
        return value.strip() if isinstance(value, str) else default

    def wanted(self, name: str) -> str | None:
        """A filter of the query; empty is none."""
        return self.query.get(name, "").strip()[:256] or None

    def integer(self, name: str) -> int:
        text = self.text(name).replace("\u202f", "").replace(" ", "").replace(",", "")
        if not text.isdecimal() or len(text) > 16:
            raise InvalidRequest(f"{name.replace('_', ' ')}: a whole number, please", param=name)
        return int(text)

    def render(self, name: str, status: int = 200, **context: Any) -> HTMLResponse:
        visitor = self.visitor
        token = None if visitor is None else self.services.sessions.form_token(visitor.session_id)
        page = self.templates.get_template(name).render(
            visit=self,
            person=None if visitor is None else visitor.person,
            may=self._may,
            csrf=token,
            status=status,
            here=self.request.url.path.removeprefix(PREFIX),
            now=self.services.clock.now(),
            done=DONE.get(self.query.get("done", "")),
            **context,
        )
        return HTMLResponse(page, status)

    def confirm(
        self, title: str, changes: Sequence[Change], action: str, *, note: str = "", back: str
    ) -> HTMLResponse:
        """The same form once more, with what it will change; nothing is done yet."""
        kept = {k: v for k, v in self.form.multi_items() if k != "csrf" and isinstance(v, str)}
        return self.render(
            "confirm.html",
            title=title,
            changes=changes,
            action=action,
            note=note,
            back=back,
            kept=kept,
        )

    def goto(self, path: str, **query: str) -> Response:
        return RedirectResponse(with_query(PREFIX + path, query), 303)

    def _may(self, permission: Permission) -> bool:
        return self.visitor is not None and self.visitor.administrator.may(permission)


def with_query(path: str, query: Mapping[str, str | None]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


class Page(NamedTuple):
    """A route, and who may take it."""

    method: Literal["GET", "POST"]
    path: str
    show: Callable[[Visit], Awaitable[Response]]
    permission: Permission | None = "read"  # None: anybody, signed in or not
    is_staff: bool = False  # not for tenants' people
