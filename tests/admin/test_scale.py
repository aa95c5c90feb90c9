"""Every page asks the database little, and no more of it when there is a hundred times as much."""

import sqlite3
import statistics
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, event
from tests.console_places import Places, furnish, path_of
from tests.console_scale import fill
from tests.console_stand import PASSWORD, Browser, ConsoleStand, console_stand, sign_in
from tests.platform_stand import Seeded, home_like, letter_engine, seed

from loraplex_admin.app import PAGES, mount_console
from loraplex_admin.visit import Page
from loraplex_platform.app import create_app
from loraplex_platform.openai.served_model import ServedModel

MOST_QUERIES = 10
EXCEPT = {"/tenants/{tenant_id}/bills/drafts/{month}": 20}  # it rates every open month anew
MOST_STEPS = (
    3_000_000  # of SQLite's machine for a page; reading all events once takes ten times that
)
MOST_TIMES = 3.0
LOADS = 7
LOOKED_AT = [page for page in PAGES if page.method == "GET" and page.path != "/audit/export"]
WIDE = (  # filters and sorts that lead across all tenants
    "/tenants?sort=-name",
    "/tenants?state=suspended",
    "/tenants?plan_id=plan_1",
    "/requests?hours=720",
    "/requests?hours=720&outcome=error",
    "/requests?hours=720&model=nobody-has-this",
    "/requests?hours=720&key_id=key_000001",
    "/refusals?hours=1",
    "/search?q=customer-0000",
    "/audit?object_type=api_key",
)


class Asked(NamedTuple):
    """A statement and what it was asked with."""

    statement: str
    values: Any


@contextmanager
def asking() -> Iterator[list[Asked]]:
    asked: list[Asked] = []

    def note(_: object, __: object, statement: str, values: Any, *rest: object) -> None:
        if not statement.startswith(("BEGIN", "PRAGMA")):
            asked.append(Asked(statement, values))

    event.listen(Engine, "before_cursor_execute", note)
    yield asked
    event.remove(Engine, "before_cursor_execute", note)


async def test_every_page_asks_at_most_ten_times(stand: ConsoleStand, keys: Seeded) -> None:
    places = await furnish(stand, keys.acme.split("_")[1])
    owner = await stand.signed_in()
    for page in LOOKED_AT:
        with asking() as asked:
            assert (await owner.get(path_of(page, places))).status_code == 200, page.path
        assert len(asked) <= EXCEPT.get(page.path, MOST_QUERIES), page.path


@pytest.fixture
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("full")


class Loaded(NamedTuple):
    """A page at one size."""

    seconds: float
    queries: int
    steps: int


@asynccontextmanager
async def at_size(
    home: Path, migrated: Path, model: ServedModel, share: float
) -> AsyncIterator[tuple[Browser, Places, Path]]:
    settings = home_like(migrated.parent, home)
    keys = await seed(settings)
    path = home / "loraplex.sqlite3"
    fill(path, share)
    app = create_app(settings, letter_engine(), model)
    mount_console(app)
    async with console_stand(app, {}) as stand:
        places = await furnish(stand, keys.acme.split("_")[1])
        await stand.person("she@example.com", "owner")
        browser = await stand.anonymous()
        await sign_in(browser, "she@example.com", PASSWORD)
        busy = {"tenant_id": "ten_000001", "project_id": "proj_000001", "key_id": "key_000001"}
        busy |= {"webhook_id": "wh_000001", "subject": "ten_000001", "name": "support"}
        busy |= {"request_id": "req_00000001", "batch_id": await a_batch(path)}
        yield browser, places | busy, path
    await app.state.database.close()


async def a_batch(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        found: str = connection.execute(
            "SELECT min(id) FROM batch WHERE id > 'batch_0'"
        ).fetchone()[0]
    return found


async def load(browser: Browser, path: str, database: Path) -> Loaded:
    """Once to warm up, then the middle of several times."""
    await browser.get(path)
    with asking() as asked:
        assert (await browser.get(path)).status_code == 200, path
    times = []
    for _ in range(LOADS):
        started = perf_counter()
        await browser.get(path)
        times.append(perf_counter() - started)
    return Loaded(statistics.median(times), len(asked), steps_of(asked, database))


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
        sizes = [
            await stack.enter_async_context(at_size(home, migrated, model, share))
            for home, share in zip(homes, (0.01, 1.0), strict=True)
        ]
        offenders = []
        for page in (*LOOKED_AT, *WIDE):
            small, full = [
                await load(
                    browser, page if isinstance(page, str) else path_at(page, places), database
                )
                for browser, places, database in sizes
            ]
            name = page if isinstance(page, str) else page.path
            times = full.seconds / small.seconds
            print(  # noqa: T201 (pytest -s shows the table)
                f"{name:64} {small.seconds * 1e3:6.1f} {full.seconds * 1e3:6.1f} ms "
                f"{times:4.1f}x {full.queries:2} queries {full.steps:8} steps"
            )
            if (
                times > MOST_TIMES
                or full.queries > EXCEPT.get(name, MOST_QUERIES)
                or full.steps > MOST_STEPS
            ):
                offenders.append((name, round(times, 1), full))
        assert offenders == []
