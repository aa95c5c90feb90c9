"""Every page asks the database little, and no more of it when there is a hundred times as much."""

import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.asked import asking, steps_of
from tests.calls import calling
from tests.console_places import LOOKED_AT, Places, furnish, path_of
from tests.console_scale import fill
from tests.console_stand import PASSWORD, Browser, ConsoleStand, console_stand, sign_in
from tests.platform_stand import Seeded, home_like, letter_engine, seed

from loraplex_admin.app import mount_console
from loraplex_admin.visit import Page
from loraplex_platform.app import create_app
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.openai.served_model import ServedModel

log = logging.getLogger(__name__)

MOST_QUERIES = 10
MOST_STEPS = (
    3_000_000  # of SQLite's machine for a page; reading all events once takes ten times that
)
MOST_TIMES = 3.0
LOADS = 4
# CPU time by what was counted, fitted to that of all pages: what each of them costs besides, and
# each query, step and call. Rows that are shown count, as they do in the time.
PAGE_S, QUERY_S, STEP_S, CALL_S = 6e-4, 8e-4, 4e-8, 1.5e-7
WIDE = (  # filters and sorts that lead across all tenants
    "/tenants?sort=-name",
    "/tenants?state=suspended",
    "/tenants?plan_id=plan_s1",
    "/requests?hours=720",
    "/requests?hours=720&outcome=error",
    "/requests?hours=720&model=nobody-has-this",
    "/requests?hours=720&key_id=key_000001",
    "/requests?hours=720&sort=-total",
    "/requests?hours=720&sort=first&outcome=error",
    "/refusals?hours=1",
    "/batches?sort=-lines",
    "/batches?status=failed",
    "/settings/webhooks?sort=-since",
    "/search?q=customer-0000",
    "/audit?object_type=api_key",
)


async def test_every_page_asks_at_most_ten_times(stand: ConsoleStand, keys: Seeded) -> None:
    places = await furnish(stand, keys.acme.split("_")[1])
    owner = await stand.signed_in()
    for page in LOOKED_AT:
        with asking() as asked:
            assert (await owner.get(path_of(page, places))).status_code == 200, page.path
        assert len(asked) <= MOST_QUERIES, page.path


@pytest.fixture
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("full")


class Ahead(SystemClock):
    """The machine's clock, moved on: what is remembered for a moment is read again."""

    def __init__(self) -> None:
        self.skew = timedelta()

    def now(self) -> datetime:
        return super().now() + self.skew

    def monotonic(self) -> float:
        return super().monotonic() + self.skew.total_seconds()


@dataclass
class Console:
    """A console over a database of one size."""

    browser: Browser
    places: Places
    database: Path
    clock: Ahead

    async def load(self, page: Page | str) -> None:
        path = page if isinstance(page, str) else path_at(page, self.places)
        self.clock.skew += timedelta(seconds=3)
        answer = await self.browser.get(path)
        assert answer.status_code == 200, path


@asynccontextmanager
async def at_size(
    home: Path, migrated: Path, model: ServedModel, share: float
) -> AsyncIterator[Console]:
    settings = home_like(migrated.parent, home)
    keys = await seed(settings)
    path = home / "loraplex.sqlite3"
    fill(path, share)
    clock = Ahead()
    app = create_app(settings, letter_engine(), model, clock=clock)
    mount_console(app)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(app.state.database.close)
        stand = await stack.enter_async_context(console_stand(app, {}))
        places = await furnish(stand, keys.acme.split("_")[1])
        await stand.person("she@example.com", "owner")
        browser = await stand.anonymous()
        await sign_in(browser, "she@example.com", PASSWORD)
        busy = {"tenant_id": "ten_000001", "project_id": "proj_000001", "key_id": "key_000001"}
        busy |= {"webhook_id": "wh_000001", "subject": "ten_000001", "name": "support"}
        busy |= {"request_id": "req_00000001", "batch_id": await a_batch(path)}
        yield Console(browser, places | busy, path, clock)


async def a_batch(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        found: str = connection.execute(
            "SELECT min(id) FROM batch WHERE id > 'batch_0'"
        ).fetchone()[0]
    return found


def path_at(page: Page, places: Places) -> str:
    own = {"/settings/plans/{plan_id}", "/tenants/{tenant_id}/bills/invoices/{invoice_id}"}
    invoice_of = places | {"tenant_id": places["invoice_id"].removeprefix("inv_")}
    return path_of(page, invoice_of if page.path.startswith(tuple(own)) else places)


class Cost(NamedTuple):
    """What a page costs, counted: a neighbour on the machine changes none of it."""

    queries: int
    steps: int  # of SQLite's machine
    calls: int  # of Python's functions

    @property
    def seconds(self) -> float:
        return PAGE_S + self.queries * QUERY_S + self.steps * STEP_S + self.calls * CALL_S


async def cost_of(page: Page | str, console: Console) -> Cost:
    """The least of some loads: the others read what is then kept for minutes."""
    costs = []
    for _ in range(LOADS):
        with asking() as asked, calling() as calls:
            await console.load(page)
        costs.append(Cost(len(asked), steps_of(asked, console.database), len(calls)))
    return min(costs, key=lambda cost: cost.seconds)


@pytest.mark.slow
async def test_hundred_times_the_data_costs_at_most_three_times_as_much(
    homes: tuple[Path, Path], migrated: Path, model: ServedModel
) -> None:
    """5,000 tenants and 1,000,000 usage events beside 1 % of that."""
    async with AsyncExitStack() as stack:
        small, full = [
            await stack.enter_async_context(at_size(home, migrated, model, share))
            for home, share in zip(homes, (0.01, 1.0), strict=True)
        ]
        offenders = []
        for page in (*LOOKED_AT, *WIDE):
            less, more = await cost_of(page, small), await cost_of(page, full)
            times = more.seconds / less.seconds
            name = page if isinstance(page, str) else page.path
            log.info("%-58s %4.1fx %s", name, times, more)
            if more.queries > MOST_QUERIES or more.steps > MOST_STEPS or times > MOST_TIMES:
                offenders.append((name, times, more))
        assert offenders == []
