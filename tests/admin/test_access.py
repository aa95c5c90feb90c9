"""Who may load and send what: generated over every page that the console has."""

import re

import httpx2
import pytest
from tests.console_places import LOOKED_AT, Places, furnish, path_of
from tests.console_stand import HOST, PASSWORD, Browser, ConsoleStand, sign_in
from tests.platform_stand import Seeded

from loraplex_admin.app import HEADERS, PAGES
from loraplex_admin.visit import Page

INSIDE = [page for page in PAGES if page.permission is not None]
FORMS = [page for page in PAGES if page.method == "POST"]
ACTIONS = [page for page in FORMS if page.permission not in (None, "read")]
OF_SOMEBODY = [page for page in (*INSIDE, *LOOKED_AT) if "{" in page.path]

ANYTHING = {  # what makes each form valid
    "action": "disable",
    "confirmed": "yes",
    "email": "new@example.com",
    "expires": "",
    "grace": "0",
    "name": "new",
    "revision": "1",
    "role": "tenant_viewer",
    "span": "0",
    "state": "suspended",
    "value": "1",
}


async def send(browser: Browser, page: Page, path: str) -> httpx2.Response:
    if page.method == "GET":
        return await browser.get(path)
    return await browser.post(path, **ANYTHING)


@pytest.fixture
async def places(stand: ConsoleStand, keys: Seeded) -> Places:
    return await furnish(stand, keys.acme.split("_")[1])


async def test_nobody_gets_in_without_signing_in(stand: ConsoleStand, places: Places) -> None:
    nobody = await stand.anonymous()
    for page in INSIDE:
        path = path_of(page, places)
        headers = {"origin": HOST}
        answer = await nobody.http.request(page.method, f"/admin{path}", headers=headers)
        assert answer.status_code == 303, page
        assert answer.headers["location"].startswith("/admin/sign-in")


async def test_every_staff_page_shows(stand: ConsoleStand, places: Places) -> None:
    owner = await stand.signed_in()
    for page in LOOKED_AT:
        answer = await owner.get(path_of(page, places))
        assert answer.status_code == 200, (page.path, answer.text)
        assert HEADERS.items() <= dict(answer.headers).items()


async def test_form_without_token_or_from_elsewhere_is_refused(
    stand: ConsoleStand, places: Places
) -> None:
    owner = await stand.signed_in()
    token = await owner.token()
    for page in (page for page in FORMS if page in INSIDE):
        url = f"/admin{path_of(page, places)}"
        for headers, form in (
            ({"origin": HOST}, {}),
            ({"origin": HOST}, {"csrf": "0" * 64}),
            ({"origin": "https://evil.example"}, {"csrf": token}),
            ({"origin": "null"}, {"csrf": token}),
            ({"sec-fetch-site": "cross-site"}, {"csrf": token}),
            ({}, {"csrf": token}),
        ):
            answer = await owner.http.post(url, data=form, headers=headers)
            assert answer.status_code == 403, (page.path, headers, form)


async def test_token_of_another_session_is_refused(stand: ConsoleStand) -> None:
    owner, viewer = await stand.signed_in(), await stand.signed_in("viewer")
    token = await viewer.token()
    assert (await owner.post("/tenants", token, name="x")).status_code == 403


async def test_viewer_may_do_nothing(stand: ConsoleStand, places: Places) -> None:
    viewer = await stand.signed_in("viewer")
    for page in ACTIONS:
        answer = await send(viewer, page, path_of(page, places))
        assert answer.status_code == 403, page.path
    shown = (await viewer.get(f"/tenants/{stand.acme}")).text
    assert re.findall(r'method="post" action="([^"]+)"', shown) == ["/admin/sign-out"]


async def test_another_tenants_things_do_not_exist(stand: ConsoleStand, places: Places) -> None:
    theirs = await stand.signed_in("tenant_admin", "globex")
    for page in OF_SOMEBODY:
        answer = await send(theirs, page, path_of(page, places))
        allowed = (404,) if page.permission in ("read", "projects") else (403, 404)
        assert answer.status_code in allowed, page.path
        assert "acme" not in answer.text


async def test_own_path_with_another_tenants_id_does_not_exist(
    stand: ConsoleStand, keys: Seeded
) -> None:
    theirs = await stand.signed_in("tenant_admin", "globex")
    key = keys.acme.split("_")[1]
    for path in (
        f"/tenants/{stand.globex}/projects/{stand.project}",
        f"/tenants/{stand.globex}/projects/{stand.project}/keys/{key}",
        f"/tenants/{stand.globex}/limits/tenant/{stand.acme}/tokens_per_day",
        f"/tenants/{stand.globex}/limits/key/{key}/tokens_per_day",
        f"/tenants/{stand.globex}/limits/project/{stand.project}/tokens_per_day",
    ):
        assert (await theirs.get(path)).status_code == 404, path
    assert "acme" not in (await theirs.get(f"/search?q={key}")).text
    for path in ("/", "/requests", "/refusals", "/audit", "/audit/export", "/search?q=acme"):
        page = await theirs.get(f"{path}?tenant_id={stand.acme}" if "?" not in path else path)
        assert page.status_code == 200
        assert f"/tenants/{stand.acme}" not in page.text


async def test_staff_pages_do_not_exist_for_tenants_people(
    stand: ConsoleStand, places: Places
) -> None:
    theirs = await stand.signed_in("tenant_admin", "acme")
    for page in PAGES:
        if page.is_staff:
            answer = await send(theirs, page, path_of(page, places))
            assert answer.status_code in (403, 404), page.path
    assert (await theirs.get("/tenants")).headers["location"] == f"/admin/tenants/{stand.acme}"
    assert "KV memory" not in (await theirs.get("/")).text


async def test_tenants_admin_may_not_raise_their_own_limit_or_role(stand: ConsoleStand) -> None:
    theirs = await stand.signed_in("tenant_admin", "acme")
    path = f"/tenants/{stand.acme}/limits/tenant/{stand.acme}/tokens_per_day"
    raised = await theirs.post(path, value="9", span="0", confirmed="yes")
    assert raised.status_code == 403
    invited = await theirs.post(f"/tenants/{stand.acme}/people", email="x@y", role="owner")
    assert invited.status_code == 400


async def test_signed_out_session_is_worth_nothing(stand: ConsoleStand) -> None:
    await stand.person("she@example.com", "owner")
    browser, thief = await stand.anonymous(), await stand.anonymous()
    await sign_in(browser, "she@example.com")
    thief.http.cookies.update(browser.http.cookies)
    assert (await thief.get("/")).status_code == 200
    await browser.post("/sign-out")
    assert (await thief.get("/")).status_code == 303
    assert len(browser.http.cookies) == 0


async def test_session_that_was_planted_is_not_the_one_after_signing_in(
    stand: ConsoleStand,
) -> None:
    await stand.person("she@example.com", "owner")
    browser = await stand.anonymous()
    await sign_in(browser, "she@example.com")
    planted = dict(browser.http.cookies)
    await sign_in(browser, "she@example.com")
    assert dict(browser.http.cookies) != planted
    thief = await stand.anonymous()
    thief.http.cookies.update(planted)
    assert (await thief.get("/")).status_code == 303


async def test_wrong_passwords_are_throttled(stand: ConsoleStand) -> None:
    await stand.person("she@example.com", "owner")
    nobody = await stand.anonymous()
    answers = [await sign_in(nobody, "she@example.com", "wrong") for _ in range(11)]
    assert [a.status_code for a in answers] == [401] * 10 + [429]
    assert int(answers[-1].headers["retry-after"]) > 0
    assert (await sign_in(nobody, "she@example.com")).status_code == 429


async def test_password_does_not_cross_plain_http(stand: ConsoleStand) -> None:
    await stand.person("she@example.com", "owner")
    form = {"email": "she@example.com", "password": PASSWORD}
    for host, origin, status in (
        ("console.example", "http://console.example", 403),
        ("console.example", "https://console.example", 303),  # a proxy ends TLS
        ("127.0.0.1:8000", "http://127.0.0.1:8000", 303),
    ):
        nobody = await stand.anonymous()
        headers = {"host": host, "origin": origin}
        answer = await nobody.http.post("/admin/sign-in", data=form, headers=headers)
        assert answer.status_code == status
        if status == 303:
            cookie = answer.headers["set-cookie"]
            is_secure = origin.startswith("https")
            assert cookie.startswith("__Host-") == ("; Secure" in cookie) == is_secure
            assert "HttpOnly" in cookie
            assert "SameSite=lax" in cookie


async def test_sign_in_leads_to_pages_of_the_console_only(stand: ConsoleStand) -> None:
    await stand.person("she@example.com", "owner")
    nobody = await stand.anonymous()
    form = {"email": "she@example.com", "password": PASSWORD}
    for then, lands in (
        ("/audit", "/admin/audit"),
        ("//evil.example", "/admin/"),
        ("https://evil.example", "/admin/"),
        ("/\\evil.example", "/admin/"),
        ("", "/admin/"),
    ):
        headers = {"origin": HOST}
        answer = await nobody.http.post(
            "/admin/sign-in", data={**form, "next": then}, headers=headers
        )
        assert answer.headers["location"] == lands


async def test_sign_in_form_from_elsewhere_is_refused(stand: ConsoleStand) -> None:
    await stand.person("she@example.com", "owner")
    nobody = await stand.anonymous()
    form = {"email": "she@example.com", "password": PASSWORD}
    for headers in ({}, {"origin": "https://evil.example"}, {"sec-fetch-site": "same-site"}):
        answer = await nobody.http.post("/admin/sign-in", data=form, headers=headers)
        assert answer.status_code == 403


async def test_unknown_page_is_told_so(stand: ConsoleStand) -> None:
    owner = await stand.signed_in()
    answer = await owner.get("/no/such/page")
    assert answer.status_code == 404
    assert "there is no such page" in answer.text
