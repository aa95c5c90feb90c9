"""One request of one browser: who it is, what it sent, and how it is answered."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar
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
TOKENS = ("csrf", "once")
SHOWN = 50  # rows of a table on one page
Row = TypeVar("Row")
Columns = Mapping[str, Callable[[Row], Any]]  # what a table may be sorted by
DONE = {
    "changed": "Changed.",
    "created": "Created.",
    "removed": "Removed.",
    "revoked": "Revoked: the key no longer works.",
    "sent": "On its way: the answer shows here within seconds.",
    "invited": "Invited.",
    "password": "The password is set. Sign in with it.",
    "signed-out": "You are signed out.",
}


class Cut(TypedDict):
    """Which rows of a table the address asks for, and one more to know whether there are more."""

    after: str | None
    limit: int
    order: str


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

    @property
    def is_part(self) -> bool:
        """Whether a page that is shown already asks, for a part of itself."""
        return is_part(self.request)

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

    @property
    def sort(self) -> str:
        """The column that the address asks for; with «-» before it, the largest first."""
        return self.wanted("sort") or ""

    @property
    def cut(self) -> Cut:
        return Cut(after=self.wanted("after"), limit=SHOWN + 1, order=self.sort)

    def way_of(self, name: str) -> str | None:
        """How a column is sorted, in the words of aria-sort."""
        ways = {name: "ascending", f"-{name}": "descending"}
        return ways.get(self.sort)

    def sorted(self, rows: Iterable[Row], by: Columns[Row]) -> list[Row]:
        """Rows as the address asks; as they are where it does not. None comes last."""
        key = by.get(self.sort.removeprefix("-"))
        if key is None:
            return list(rows)
        known = [row for row in rows if key(row) is not None]
        rest = [row for row in rows if key(row) is None]
        return sorted(known, key=key, reverse=self.sort.startswith("-")) + rest

    def integer(self, name: str) -> int:
        text = self.text(name).replace("\u202f", "").replace(" ", "").replace(",", "")
        if not text.isdecimal() or len(text) > 16:
            raise InvalidRequest(f"{name.replace('_', ' ')}: a whole number, please", param=name)
        return int(text)

    def decimal(self, name: str, label: str) -> float | None:
        text = self.text(name)
        try:
            return float(text) if text else None
        except ValueError as error:
            raise InvalidRequest(f"{label}: a number, please", param=name) from error

    async def tenant_wanted(self) -> str | None:
        """The id of the tenant that a filter names, by its name or its id; one's own for others."""
        if self.by.tenant_id is not None:
            return self.by.tenant_id
        text = self.wanted("tenant_id")
        if text is None or text.startswith("ten_"):
            return text
        return (await self.services.tenants.get(text)).id

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
    ) -> Response:
        """The same form once more, with what it will change; nothing is done yet."""
        kept = [
            (k, v) for k, v in self.form.multi_items() if k not in TOKENS and isinstance(v, str)
        ]
        page = self.render(
            "confirm.html",
            title=title,
            changes=changes,
            action=action,
            note=note,
            back=back,
            kept=kept,
        )
        return Review(page.body)

    def goto(self, path: str, **query: str) -> Response:
        return RedirectResponse(with_query(PREFIX + path, query), 303)

    def _may(self, permission: Permission) -> bool:
        return self.visitor is not None and self.visitor.administrator.may(permission)


def is_part(request: Request) -> bool:
    """Asked by htmx, not by a person who goes somewhere."""
    return request.headers.get("hx-request") == "true"


def with_query(path: str, query: Mapping[str, str | None]) -> str:
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


class Review(HTMLResponse):
    """A confirmation: what was sent has not been done."""


class Page(NamedTuple):
    """A route, and who may take it."""

    method: Literal["GET", "POST"]
    path: str
    show: Callable[[Visit], Awaitable[Response]]
    permission: Permission | None = "read"  # None: anybody, signed in or not
    is_staff: bool = False  # not for tenants' people
    max_files: int = 0  # in its form
