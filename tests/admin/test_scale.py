"""Every page asks the database little, and no more of it when there is a hundred times as much."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from time import process_time

import pytest
from tests.asked import Asked, asking
from tests.console_places import LOOKED_AT, Places, furnish, path_of
from tests.console_scale import fill
from tests.console_stand import PASSWORD, Browser, ConsoleStand, console_stand, sign_in
from tests.platform_stand import Seeded, home_like, letter_engine, seed

from loraplex_admin.app import mount_console
from loraplex_admin.visit import Page
from loraplex_platform.app import create_app
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.openai.served_model import ServedModel

MOST_QUERIES = 10
MOST_STEPS = (
    3_000_000  # of SQLite's machine for a page; reading all events once takes ten times that
)
MOST_TIMES = 3.0
LOADS, TRIES = 5, 3
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
    seconds: list[float] = field(default_factory=list)  # of CPU, the database's too

    async def load(self, page: Page | str) -> None:
        path = page if isinstance(page, str) else path_at(page, self.places)
        self.clock.skew += timedelta(seconds=3)
        started = process_time()
        answer = await self.browser.get(path)
        self.seconds.append(process_time() - started)
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


def steps_of(asked: list[Asked], database: Path) -> int:
    """What SQLite does for these statements, in steps of its machine."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    connection.set_progress_handler(count, 100)
    for statement, values in asked:
        connection.execute(statement, values).fetchall()
    connection.close()
    return steps


def path_at(page: Page, places: Places) -> str:
    own = {"/settings/plans/{plan_id}", "/tenants/{tenant_id}/bills/invoices/{invoice_id}"}
    invoice_of = places | {"tenant_id": places["invoice_id"].removeprefix("inv_")}
    return path_of(page, invoice_of if page.path.startswith(tuple(own)) else places)


@pytest.mark.slow
async def test_hundred_times_the_data_takes_at_most_three_times_as_long(
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
            times, queries, steps = await compare(page, small, full)
            name = page if isinstance(page, str) else page.path
            print(f"{name:64} {times:4.1f}x {queries:3} queries {steps:8} steps")  # noqa: T201
            is_dear = queries > MOST_QUERIES or steps > MOST_STEPS
            if is_dear or times > MOST_TIMES:
                offenders.append((name, times, queries, steps))
        assert offenders == []


async def compare(page: Page | str, small: Console, full: Console) -> tuple[float, int, int]:
    """How many times as long the full one takes; what it asks, and what SQLite does for that.

    The least of several loads, in turn, and CPU time: neighbours on the machine count for neither.
    A page that looks too slow is loaded more often, lest it was they.
    """
    small.seconds, full.seconds = [], []
    times = float("inf")
    for _ in range(TRIES):
        for _ in range(LOADS):
            await small.load(page)
            await full.load(page)
        times = min(full.seconds[1:]) / min(small.seconds[1:])
        if times <= MOST_TIMES:
            break
    with asking() as asked:
        await full.load(page)
    return times, len(asked), steps_of(asked, full.database)
