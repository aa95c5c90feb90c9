"""The console in a real Chromium: without a mouse, without JavaScript, told nothing."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright
from tests.admin.test_pages import asked
from tests.console_stand import LOOPBACK, PASSWORD, ConsoleStand, console_stand
from tests.platform_stand import Seeded, home_like, letter_engine, listening, seed
from tests.until import until

from loraplex_admin.app import mount_console
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.app import create_app
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.supervision.first_operator import EMAIL, first_link

pytestmark = pytest.mark.slow
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
TELL_VIOLATIONS = """addEventListener("securitypolicyviolation",
    (event) => console.error("CSP", event.violatedDirective, event.blockedURI));"""


@dataclass(frozen=True, slots=True)
class Chromium:
    browser: Browser
    base_url: str

    @asynccontextmanager
    async def page(
        self, token: str | None = None, *, fine: tuple[int, ...] = (), **options: object
    ) -> AsyncIterator[Page]:
        """A tab; afterwards it must not have complained, but of pages with a status that is fine."""
        context = await self.browser.new_context(**options)  # type: ignore[arg-type]
        if token is not None:
            await context.add_cookies([{"name": LOOPBACK, "value": token, "url": self.base_url}])
        page = await context.new_page()
        complaints: list[str] = []
        await page.add_init_script(TELL_VIOLATIONS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: _note(said, complaints))
        yield page
        await context.close()
        prefix = "Failed to load resource: the server responded with a status of"
        known = tuple(f"{prefix} {status}" for status in fine)
        assert [each for each in complaints if not each.startswith(known)] == []


def _note(said: ConsoleMessage, complaints: list[str]) -> None:
    if said.type == "error":
        complaints.append(f"{said.text} {said.location['url']}")


@asynccontextmanager
async def browsing(app: FastAPI) -> AsyncIterator[Chromium]:
    path = shutil.which("chromium")
    assert path is not None, "apt-get install chromium"
    async with listening(app) as base_url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield Chromium(browser, base_url)
        await browser.close()


@pytest.fixture
async def chromium(app: FastAPI) -> AsyncIterator[Chromium]:
    async with browsing(app) as chromium:
        yield chromium


async def limit_acme(stand: ConsoleStand) -> None:
    limits: LimitService = stand.app.state.limits
    subject = Subject(stand.acme, "tenant", stand.acme)
    await limits.set(subject, "requests_per_minute", 1, strict=False)


async def eventually_refused(stand: ConsoleStand, key: str) -> None:
    """Running servers follow within a second."""

    async def is_refused() -> bool:
        return await asked(stand, key) == [401]

    await until(is_refused)


@pytest.mark.parametrize("javascript", [True, False])
async def test_first_operator_finds_why_raises_the_limit_and_rotates_the_key(
    tmp_path: Path, migrated: Path, model: ServedModel, javascript: bool
) -> None:
    settings = home_like(migrated.parent, tmp_path)
    keys = await seed(settings)
    app = create_app(settings, letter_engine(), model)
    mount_console(app)
    async with console_stand(app, {}) as stand, browsing(app) as chromium:
        link = await first_link(settings, chromium.base_url)
        assert link is not None
        await limit_acme(stand)
        async with chromium.page(java_script_enabled=javascript) as page:
            await set_password(page, link, javascript)
            await find_why_and_raise(stand, page, keys)
            await rotate(stand, page, keys)
        assert await first_link(settings, chromium.base_url) is None


async def set_password(page: Page, link: str, javascript: bool) -> None:
    await page.goto(link)
    if not javascript:
        await page.get_by_label("Your link").fill(link)
    await page.get_by_label("New password").fill(PASSWORD)
    await page.get_by_label("Once more").fill(PASSWORD)
    await page.get_by_role("button", name="Set password").click()
    await page.get_by_label("E-mail").fill(EMAIL)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()


async def find_why_and_raise(stand: ConsoleStand, page: Page, keys: Seeded) -> None:
    assert await asked(stand, keys.acme, 3) == [200, 429, 429]
    await stand.app.state.rejections.flush()
    await alerted(page)
    await page.get_by_role("link", name="see why").click()
    row = page.get_by_role("row").filter(has_text="acme")
    assert "the limit was used up" in await row.inner_text()
    await row.get_by_role("link", name="Requests per minute").click()
    await page.get_by_label("New value").fill("100")
    await page.get_by_label("For how long").select_option("for a day")
    await page.get_by_role("button", name="Review change").click()
    assert "100 for a day" in await page.get_by_role("main").inner_text()
    await page.get_by_role("button", name="Change", exact=True).click()
    await page.get_by_text("Changed.").wait_for()
    await asyncio.sleep(0.6)
    assert await asked(stand, keys.acme, 5) == [200] * 5


async def alerted(page: Page) -> None:
    """Look at the overview until it tells: all who look share a reading for two seconds."""

    async def tells() -> bool:
        await page.get_by_role("link", name="Overview").click()
        await page.wait_for_load_state()
        return await page.get_by_role("link", name="see why").is_visible()

    await until(tells)


async def rotate(stand: ConsoleStand, page: Page, keys: Seeded) -> None:
    await page.get_by_role("link", name="Turned away").click()
    await page.get_by_role("link", name=keys.acme.split("_")[1]).click()
    await page.get_by_role("button", name="Rotate…").click()
    await page.get_by_role("button", name="Rotate", exact=True).click()
    new = await page.locator("#secret").inner_text()
    await eventually_refused(stand, keys.acme)
    assert await asked(stand, new) == [200]


async def test_overview_follows_by_itself_and_draws_what_its_tables_say(
    stand: ConsoleStand, chromium: Chromium, keys: Seeded
) -> None:
    async with chromium.page(stand.sessions["owner@platform"]) as page:
        await page.goto(f"{chromium.base_url}/admin/")
        assert await page.locator("figure canvas").count() == 2
        assert not await page.get_by_role("link", name="see why").is_visible()
        await limit_acme(stand)
        await asked(stand, keys.acme, 3)
        await stand.app.state.rejections.flush()
        await page.get_by_role("link", name="see why").wait_for(timeout=60_000)
        assert await page.locator("figure canvas").count() == 2
        table = page.locator("#refused-chart table")
        cells = await table.evaluate(
            "table => [...table.tBodies[0].rows].map(row => Number(row.cells[1].dataset.value))"
        )
        assert sum(cells) == 2


async def test_tenant_is_suspended_with_the_keyboard_alone(
    stand: ConsoleStand, chromium: Chromium
) -> None:
    async with chromium.page() as page:
        await page.goto(f"{chromium.base_url}/admin/tenants")
        await page.keyboard.type("owner@platform")
        await page.keyboard.press("Tab")
        await page.keyboard.type(PASSWORD)
        async with page.expect_navigation():
            await page.keyboard.press("Enter")
        for name in ("acme", "Suspend…"):
            await tab_to(page, name)
            async with page.expect_navigation():
                await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Suspend acme?").wait_for()
        await page.keyboard.press("Enter")  # the confirmation has the focus
        await page.get_by_text("Changed.").wait_for()
        assert "suspended" in await page.get_by_role("main").inner_text()


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the element with this text has the focus."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        focused = await page.evaluate("document.activeElement.innerText")
        if focused == name:
            return
    raise AssertionError(f"Tab never comes to {name!r}")
