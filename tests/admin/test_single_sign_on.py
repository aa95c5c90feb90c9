"""Signing in at an OpenID provider: only who it vouches for, in this browser, at this attempt."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from tests.console_stand import HOST, Browser, ConsoleStand, console_stand
from tests.openid_provider import CLIENT_ID, CLIENT_SECRET, OpenIdProvider, new_key, openid_provider

from loraplex_admin.app import mount_console
from loraplex_platform.config import BadSetting, Settings, load_settings
from loraplex_platform.kit.principal import COMMAND_LINE


@pytest.fixture
def provider() -> Iterator[OpenIdProvider]:
    with openid_provider() as provider:
        yield provider


def settings_of(provider: OpenIdProvider) -> dict[str, Any]:
    return {
        "public_url": HOST,
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET,
    }


Made = Callable[..., FastAPI]


@pytest.fixture
async def stand(make_app: Made, provider: OpenIdProvider) -> AsyncIterator[ConsoleStand]:
    app = make_app(**settings_of(provider))
    mount_console(app)
    async with console_stand(app, {}) as stand:
        yield stand


async def begin(browser: Browser, then: str = "") -> str:
    """Where the browser is sent."""
    response = await browser.get(f"/oidc?next={then}")
    assert response.status_code == 303
    return response.headers["location"]


async def back(browser: Browser, url: str) -> httpx2.Response:
    parts = urlsplit(url)
    return await browser.http.get(f"{parts.path}?{parts.query}")


async def come_and_go(stand: ConsoleStand, provider: OpenIdProvider) -> httpx2.Response:
    """The whole way; the answer to the browser that comes back."""
    browser = await stand.anonymous()
    return await back(browser, provider.authorize(await begin(browser)))


async def test_known_person_is_signed_in_and_led_to_where_they_wanted(
    stand: ConsoleStand, provider: OpenIdProvider
) -> None:
    browser = await stand.anonymous()
    page = (await browser.get("/sign-in?next=/tenants")).text
    assert 'href="/admin/oidc?next=%2Ftenants"' in page
    response = await back(browser, provider.authorize(await begin(browser, "/tenants")))
    assert (response.status_code, response.headers["location"]) == (303, "/admin/tenants")
    assert (await browser.get("/tenants")).status_code == 200


async def test_who_was_invited_becomes_active_by_signing_in(
    stand: ConsoleStand, provider: OpenIdProvider
) -> None:
    people = stand.app.state.people
    invited = await people.invite("new@example.org", "viewer", by=COMMAND_LINE)
    provider.email = "New@Example.org"
    assert (await come_and_go(stand, provider)).status_code == 303
    assert (await people.find(COMMAND_LINE, None, invited.person.id)).state == "active"


@pytest.mark.parametrize(
    "forged",
    [
        {"nonce": "another"},
        {"nonce": ""},
        {"aud": "another client"},
        {"aud": ["another client", "and one more"]},
        {"aud": [CLIENT_ID, "another client"], "azp": "another client"},
        {"iss": "https://accounts.example.org"},
        {"exp": int(time.time()) - 120},
        {"exp": ""},
        {"iat": int(time.time()) + 3600},
        {"email_verified": False},
        {"email_verified": ""},
        {"email_verified": "true-ish"},
        {"email": ""},
        {"email": "stranger@example.org"},
        {"at_hash": "wrong"},
    ],
    ids=" ".join,  # not of a value: two workers would name the time differently
)
async def test_token_with_a_wrong_claim_is_refused(
    stand: ConsoleStand, provider: OpenIdProvider, forged: dict[str, Any]
) -> None:
    provider.forged = forged
    response = await come_and_go(stand, provider)
    assert response.status_code == 401
    assert "loraplex-console" not in response.headers.get("set-cookie", "")


async def test_token_that_another_key_signed_is_refused(
    stand: ConsoleStand, provider: OpenIdProvider
) -> None:
    provider.key = new_key("another")
    assert (await come_and_go(stand, provider)).status_code == 401


async def test_way_back_is_good_in_the_browser_that_went(
    stand: ConsoleStand, provider: OpenIdProvider
) -> None:
    mine, theirs = await stand.anonymous(), await stand.anonymous()
    url = provider.authorize(await begin(mine))
    assert (await back(theirs, url)).status_code == 401  # has begun nothing
    await begin(theirs)
    assert (await back(theirs, url)).status_code == 401  # has begun something else
    assert (await back(mine, url)).status_code == 303
    assert (await back(mine, url)).status_code == 401  # once


async def test_code_that_the_provider_does_not_know_is_refused(
    stand: ConsoleStand, provider: OpenIdProvider
) -> None:
    browser = await stand.anonymous()
    url = provider.authorize(await begin(browser))
    provider.codes.clear()
    assert (await back(browser, url)).status_code == 401


async def test_disabled_person_is_refused(stand: ConsoleStand, provider: OpenIdProvider) -> None:
    person = await stand.person("ada@example.org", "viewer")
    await stand.app.state.people.change(COMMAND_LINE, None, person, {"state": "disabled"})
    provider.email = "ada@example.org"
    assert (await come_and_go(stand, provider)).status_code == 401


async def test_strangers_are_made_only_where_a_setting_says_so(
    make_app: Made, provider: OpenIdProvider
) -> None:
    provider.email = "stranger@example.org"
    app = make_app(**settings_of(provider), oidc_new_role="viewer")
    mount_console(app)
    async with console_stand(app, {}) as stand:
        assert (await come_and_go(stand, provider)).status_code == 303
        assert (await come_and_go(stand, provider)).status_code == 303
    person = await app.state.people.with_email("stranger@example.org")
    assert (person.role, person.tenant_id, person.state) == ("viewer", None, "active")


async def test_page_after_signing_in_is_one_of_ours(
    stand: ConsoleStand, provider: OpenIdProvider
) -> None:
    browser = await stand.anonymous()
    url = provider.authorize(await begin(browser, "//evil.example.org/"))
    assert (await back(browser, url)).headers["location"] == "/admin/"


async def test_provider_that_is_away_is_told(make_app: Made, provider: OpenIdProvider) -> None:
    gone = settings_of(provider) | {"oidc_issuer": "http://127.0.0.1:1"}
    app = make_app(**gone)
    mount_console(app)
    async with console_stand(app, {}) as stand:
        assert (await (await stand.anonymous()).get("/oidc")).status_code == 503


async def test_without_a_provider_there_is_no_button_and_no_page(app: FastAPI) -> None:
    async with console_stand(app, {}) as stand:
        browser = await stand.anonymous()
        assert "/admin/oidc" not in (await browser.get("/sign-in")).text
        for path in ("/oidc", "/oidc/callback?code=a&state=b"):
            assert (await browser.get(path)).status_code == 404


async def test_https_installation_keeps_its_cookies_to_https(
    make_app: Made, provider: OpenIdProvider
) -> None:
    app = make_app(**settings_of(provider) | {"public_url": "https://lora.example.org"})
    mount_console(app)
    async with console_stand(app, {}) as stand:
        browser = await stand.anonymous()
        response = await browser.get("/oidc")
    assert (
        "redirect_uri=https%3A%2F%2Flora.example.org%2Fadmin%2Foidc%2Fcallback"
        in (response.headers["location"])
    )
    cookie = response.headers["set-cookie"].lower()
    assert all(flag in cookie for flag in ("secure", "httponly", "samesite=lax"))


def test_settings_without_what_they_need_are_refused() -> None:
    issuer = {"LORAPLEX_OIDC_ISSUER": "https://accounts.example.org"}
    rest = {
        "LORAPLEX_OIDC_CLIENT_ID": "loraplex",
        "LORAPLEX_OIDC_CLIENT_SECRET": "hush",
        "LORAPLEX_PUBLIC_URL": "https://lora.example.org",
    }
    assert "hush" not in repr(load_settings(issuer | rest))
    for name in rest:
        given = {each: value for each, value in (issuer | rest).items() if each != name}
        with pytest.raises(BadSetting):
            load_settings(given)
    with pytest.raises(BadSetting):
        Settings(
            public_url="http://lora.example.org",
            oidc_issuer="https://a.example.org",
            oidc_client_id="a",
            oidc_client_secret="b",
        )
    with pytest.raises(BadSetting):
        load_settings(issuer | rest | {"LORAPLEX_OIDC_NEW_ROLE": "tenant_admin"})
