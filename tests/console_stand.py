"""What tests of the console stand on: an app with it, and people who signed in."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx2
from fastapi import FastAPI

from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.people.service import PeopleService
from loraplex_platform.tenants.service import TenantService

HOST = "http://localhost"
PASSWORD = "correct horse battery"
CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Browser:
    """Somebody's browser without JavaScript: cookies, forms, an Origin with each form."""

    http: httpx2.AsyncClient

    async def get(self, path: str) -> httpx2.Response:
        return await self.http.get(f"/admin{path}")

    async def post(self, path: str, token: str | None = None, **form: object) -> httpx2.Response:
        """Sends a form with the token of a page that was loaded, or with this one."""
        if token is None:
            token = CSRF.findall((await self.get("/audit")).text)[0]
        data = {name: value for name, value in form.items() if value is not None}
        headers = {"origin": HOST}
        return await self.http.post(f"/admin{path}", data={**data, "csrf": token}, headers=headers)

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
    browsers: dict[str, Browser] = field(default_factory=dict)

    async def person(self, email: str, role: str, tenant_id: str | None = None) -> str:
        """Somebody who can sign in; returns their id."""
        people: PeopleService = self.app.state.people
        invited = await people.invite(email, role, tenant_id=tenant_id, by=COMMAND_LINE)
        await people.redeem(invited.token, PASSWORD)
        return invited.person.id

    async def anonymous(self) -> Browser:
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url=HOST)
        return Browser(await self.stack.enter_async_context(client))

    async def signed_in(self, role: str = "owner", tenant_id: str | None = None) -> Browser:
        """A browser of somebody with this role; the same one each time."""
        email = f"{role}@{tenant_id or 'platform'}"
        if email not in self.browsers:
            await self.person(email, role, tenant_id)
            browser = await self.anonymous()
            answer = await sign_in(browser, email)
            assert answer.status_code == 303, answer.text
            self.browsers[email] = browser
        return self.browsers[email]


async def sign_in(browser: Browser, email: str, password: str = PASSWORD) -> httpx2.Response:
    form = {"email": email, "password": password}
    return await browser.http.post("/admin/sign-in", data=form, headers={"origin": HOST})


@asynccontextmanager
async def console_stand(app: FastAPI) -> AsyncIterator[ConsoleStand]:
    tenants: TenantService = app.state.tenants
    acme, globex = await tenants.get("acme"), await tenants.get("globex")
    project = await tenants.default_project(acme)
    async with AsyncExitStack() as stack:
        yield ConsoleStand(app, acme.id, globex.id, project.id, stack)
