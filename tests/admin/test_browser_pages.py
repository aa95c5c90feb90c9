"""Every page and every form of the console in a real Chromium, in every guise."""

import re
from collections.abc import AsyncIterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from fastapi import FastAPI
from playwright.async_api import Locator
from playwright.async_api import Page as Tab
from tests.adapter_stand import CONFIG_BYTES, weights_of
from tests.admin.test_browser import Chromium, browsing
from tests.admin.test_escaping import ATTACKS
from tests.admin.test_pages import asked
from tests.console_places import LOOKED_AT, Places, furnish, path_of
from tests.console_stand import ConsoleStand
from tests.platform_stand import Seeded

from loraplex_admin.app import PAGES
from loraplex_admin.visit import Page
from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.db.scope import across_tenants

pytestmark = pytest.mark.slow
VENDOR = Path(__file__).parents[1] / "vendor"
AXE = (VENDOR / "axe.min.js").read_text()
SHOWN = [page for page in LOOKED_AT if page.path != "/live"]  # a part
FORMS = [page for page in PAGES if page.method == "POST" and page.permission is not None]
JUDGED = ((1280, "light"), (375, "dark"))  # by axe, which takes a second a page
MOST_SHIFT = 0.01
NOTE_SHIFTS = """window.shift = 0; new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
}).observe({type: "layout-shift", buffered: true});"""
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
WIDER = "document.documentElement.scrollWidth > innerWidth"


@pytest.fixture
async def chromium(app: FastAPI) -> AsyncIterator[Chromium]:
    async with browsing(app) as chromium:
        yield chromium


@pytest.fixture
async def places(stand: ConsoleStand, keys: Seeded) -> Places:
    places = await furnish(stand, keys.acme.split("_")[1])
    await asked(stand, keys.acme, 2)
    return places


def test_axe_is_as_it_was_published() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    for digest, name in (line.split() for line in lines):
        assert sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")]
)
async def test_every_page_is_quiet_steady_narrow_and_clean_for_axe(
    stand: ConsoleStand, chromium: Chromium, places: Places, width: int, scheme: str
) -> None:
    viewport, faults = {"width": width, "height": 800}, []
    async with chromium.page(
        stand.sessions["owner@platform"], viewport=viewport, color_scheme=scheme
    ) as tab:
        await tab.add_init_script(NOTE_SHIFTS)
        for page in SHOWN:
            await tab.goto(f"{chromium.base_url}/admin{path_of(page, places)}")
            await tab.evaluate(TWO_FRAMES)
            shift = await tab.evaluate("window.shift")
            if shift > MOST_SHIFT:
                faults.append((page.path, "shifts", shift))
            if await tab.evaluate(WIDER):
                faults.append((page.path, "is wider than the window", width))
            if (width, scheme) in JUDGED:
                faults += [(page.path, *fault) for fault in await axe_faults(tab)]
    assert faults == []


async def axe_faults(tab: Tab) -> list[tuple[str, str]]:
    await tab.evaluate(AXE)
    found = await tab.evaluate("axe.run()")
    return [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in found["violations"]]


async def test_every_page_shows_without_javascript(
    stand: ConsoleStand, chromium: Chromium, places: Places
) -> None:
    token = stand.sessions["owner@platform"]
    async with chromium.page(token, java_script_enabled=False) as tab:
        for page in SHOWN:
            answer = await tab.goto(f"{chromium.base_url}/admin{path_of(page, places)}")
            assert answer is not None
            assert answer.status == 200, page.path
            assert await tab.get_by_role("main").inner_text(), page.path


@pytest.mark.parametrize("attack", ["markup", "direction", "long"])
async def test_attack_runs_nothing_and_breaks_no_page(
    stand: ConsoleStand, chromium: Chromium, keys: Seeded, attack: str
) -> None:
    places = await furnish(stand, keys.acme.split("_")[1], ATTACKS[attack])
    opened: list[str] = []
    viewport = {"width": 375, "height": 800}
    async with chromium.page(stand.sessions["owner@platform"], viewport=viewport) as tab:
        tab.on("dialog", lambda dialog: opened.append(dialog.message))
        for page in SHOWN:
            await tab.goto(f"{chromium.base_url}/admin{path_of(page, places)}")
            assert not await tab.evaluate(WIDER), page.path
    assert opened == []


async def test_every_form_does_what_it_says(
    stand: ConsoleStand, chromium: Chromium, places: Places
) -> None:
    """Each kind of button of each form of each page is pressed, each confirmation confirmed.

    What was done is in the audit log.
    """
    sent: set[str] = set()
    acted: dict[str, str] = {}  # request ids, with where they were sent
    gone, refused = 404, 409  # what was removed is not there afterwards
    async with chromium.page(stand.sessions["owner@platform"], fine=(gone, refused)) as tab:
        tab.on("request", lambda request: sent.add(request.url) if request.method == "POST" else 0)
        inside = [page for page in SHOWN if page.permission is not None]
        for page in sorted(inside, key=lambda page: -len(page.path)):  # the inner ones first
            url = f"{chromium.base_url}/admin{path_of(page, places)}"
            async for button in buttons_of(tab, url):
                acted |= await press(tab, *button)
    done = [page.path for page in FORMS if any(pattern_of(page).search(url) for url in sent)]
    missing = {page.path for page in FORMS} - set(done) - {"/sign-out"}
    assert missing == set()
    async with stand.app.state.database.reading() as session:
        logged = set(
            await session.scalars(
                across_tenants(AuditEvent).with_only_columns(AuditEvent.request_id)
            )
        )
    assert {url for id, url in acted.items() if id not in logged} == set()
    assert len(acted) >= len(FORMS)


def pattern_of(page: Page) -> re.Pattern[str]:
    inside = re.sub(r"\\{[a-z_]+\\}", "[^/]+", re.escape(page.path.replace(":path}", "}")))
    return re.compile(f"/admin{inside}$")


RIGHTLY_REFUSED = ("tenants are on this plan", "keeps at least one owner")
numbers = count(1)
FORM = "main form[method=post]"
# but of the own row: who takes the own role away is signed out
BUTTONS = f"""[...document.querySelectorAll('{FORM}')].flatMap((form, at) =>
    form.closest('tr')?.innerText.includes('(you)') ? [] :
    [...form.querySelectorAll('button')].map((each, place) =>
        [at, place, form.getAttribute('action') ?? location.pathname, each.value,
         each.ariaLabel ?? each.innerText]))"""
MADE = {
    "amount": "5",
    "email": "made{n}@example.com",
    "key": "ref-{n}",
    "month": "2026-01",
    "name": "made-{n}",
    "percent": "10",
    "url": "https://example.com/made",
    "value": "77",
    "weight": "3",
}


FILES = {"config": CONFIG_BYTES, "weights": weights_of()}


class Button(NamedTuple):
    form_at: int
    button_at: int
    action: str
    value: str
    label: str

    @property
    def kind(self) -> tuple[str, str, str]:
        """Rows that come and go have the same buttons."""
        page = next(page for page in FORMS if pattern_of(page).search(self.action))
        return page.path, self.value, self.label


async def buttons_of(tab: Tab, url: str) -> AsyncIterator[tuple[int, int]]:
    """Each kind once, as the page is when its turn comes: form and button, by their places.

    What removes comes last: it may take the page away.
    """
    pressed: set[tuple[str, str, str]] = set()
    while True:
        await tab.goto(url)
        found = [Button(*each) for each in await tab.evaluate(BUTTONS)]
        waiting = [each for each in found if each.kind not in pressed]
        if not waiting:
            return
        button = min(waiting, key=lambda each: each.value == "remove")
        pressed.add(button.kind)
        yield button.form_at, button.button_at


async def press(tab: Tab, form_at: int, button_at: int) -> dict[str, str]:
    """Fills the form and sends it; the request that did something, and where it was sent."""
    form = tab.locator(FORM).nth(form_at)
    await tab.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    for name, value in MADE.items():
        field = form.locator(f"input[name={name}]:not([type=hidden])")
        if await field.count():
            await field.first.fill(value.format(n=next(numbers)))
    for name, content in FILES.items():
        field = form.locator(f"input[name={name}]")
        if await field.count():
            file = {"name": name, "mimeType": "application/octet-stream", "buffer": content}
            await field.set_input_files(file)  # type: ignore[arg-type]  # a dict, as its docs say
    done = await click(tab, form.locator("button").nth(button_at))
    confirm = tab.locator("form:has(input[name=confirmed]) button")
    return await click(tab, confirm) if await confirm.count() else done


async def click(tab: Tab, button: Locator) -> dict[str, str]:
    """The request that a button sends, unless it was refused or is to be confirmed."""
    posted = tab.expect_response(lambda answer: answer.request.method == "POST")
    async with posted as sent, tab.expect_navigation():
        await button.click()
    answer = await sent.value
    await is_well(tab)
    has_acted = answer.status == 303 or await tab.locator("#secret").count()
    return {answer.headers["x-request-id"]: answer.url} if has_acted else {}


async def is_well(tab: Tab) -> None:
    if "Error" in await tab.title():
        said = await tab.get_by_role("main").inner_text()
        assert any(reason in said for reason in RIGHTLY_REFUSED), (tab.url, said)
