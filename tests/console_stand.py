"""What tests of the console stand on: an app with it, and people who signed in."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx2
from fastapi import FastAPI

from loraplex_admin.cookies import LOOPBACK
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.service import PeopleService
from loraplex_platform.people.sessions import SessionService
from loraplex_platform.tenants.service import TenantService

HOST = "http://localhost"
PEOPLE = (
    ("owner", "platform"),
    ("viewer", "platform"),
    ("tenant_admin", "acme"),
    ("tenant_admin", "globex"),
)
PASSWORD = "correct horse battery"
CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Browser:
    """Somebody's browser without JavaScript: cookies, forms, an Origin with each form."""

    http: httpx2.AsyncClient
    tokens: list[str] = field(default_factory=list)

    async def get(self, path: str) -> httpx2.Response:
        return await self.http.get(f"/admin{path}")

    async def post(self, path: str, token: str | None = None, **form: object) -> httpx2.Response:
        """Sends a form with the token of a page that was loaded, or with this one.

        A field that is a name and bytes is a file.
        """
        if token is None:
            token = await self.token()
        given = {name: value for name, value in form.items() if value is not None}
        files = {name: value for name, value in given.items() if isinstance(value, tuple)}
        data = {name: value for name, value in given.items() if name not in files} | {"csrf": token}
        headers = {"origin": HOST}
        return await self.http.post(f"/admin{path}", data=data, files=files, headers=headers)

    async def token(self) -> str:
        """The form token of this browser's session, read off a page once."""
        if not self.tokens:
            self.tokens.extend(CSRF.findall((await self.get("/search")).text))
        return self.tokens[0]

    async def done(self, path: str, **form: object) -> httpx2.Response:
        """Sends a form, looks at its confirmation, and confirms."""
        review = await self.post(path, **form)
        assert review.status_code == 200, review.text
        assert 'name="confirmed"' in review.text
        return await self.post(path, **form, confirmed="yes")


@dataclass(frozen=True, slots=True)
class ConsoleStand:
    app: FastAPI
    acme: str  # ids
    globex: str
    project: str  # acme's default project
    stack: AsyncExitStack
    sessions: Mapping[str, str]  # tokens of people who signed in, by role and tenant's name

    async def person(self, email: str, role: str, tenant_id: str | None = None) -> str:
        """Somebody who can sign in; returns their id."""
        people: PeopleService = self.app.state.people
        invited = await people.invite(email, role, tenant_id=tenant_id, by=COMMAND_LINE)
        await people.redeem(invited.token, PASSWORD)
        return invited.person.id

    async def anonymous(self) -> Browser:
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url=HOST)
        return Browser(await self.stack.enter_async_context(client))

    async def signed_in(self, role: str = "owner", place: str = "platform") -> Browser:
        """A browser of somebody with this role, at the platform or at a tenant."""
        browser = await self.anonymous()
        browser.http.cookies.set(LOOPBACK, self.sessions[f"{role}@{place}"])
        return browser


async def sign_in(browser: Browser, email: str, password: str = PASSWORD) -> httpx2.Response:
    form = {"email": email, "password": password}
    return await browser.http.post("/admin/sign-in", data=form, headers={"origin": HOST})


async def seed_people(settings: Settings) -> dict[str, str]:
    """People of several roles who signed in: their sessions' tokens."""
    database, clock, passwords = Database(settings.database), SystemClock(), Passwords()
    secrets = Secrets.load_or_create(settings.home)
    people = PeopleService(database, secrets, passwords, clock)
    sessions = SessionService(database, secrets, passwords, clock)
    tokens = {}
    for role, place in PEOPLE:
        tenants = TenantService(database, clock)
        tenant_id = None if place == "platform" else (await tenants.get(place)).id
        email = f"{role}@{place}"
        invited = await people.invite(email, role, tenant_id=tenant_id)
        await people.redeem(invited.token, PASSWORD)
        tokens[email] = await sessions.open(email, PASSWORD)
    await database.close()
    return tokens


@asynccontextmanager
async def console_stand(app: FastAPI, sessions: Mapping[str, str]) -> AsyncIterator[ConsoleStand]:
    tenants: TenantService = app.state.tenants
    acme, globex = await tenants.get("acme"), await tenants.get("globex")
    project = await tenants.default_project(acme)
    async with AsyncExitStack() as stack:
        yield ConsoleStand(app, acme.id, globex.id, project.id, stack, sessions)
