"""A migrated database in a folder of its own for each test, and the app on it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy import CompoundSelect, Connection, Delete, Engine, Select, Update, event
from tests.adapter_stand import AdapterClient
from tests.platform_stand import (
    BASE,
    Seeded,
    Served,
    home_like,
    letter_engine,
    listening,
    seed,
    tiny_model,
)
from tests.secrecy import Watch
from tests.services import PostgresServer, Rows

from loraplex_engine.fake import FakeEngine
from loraplex_platform.admission.limiter import Limiter
from loraplex_platform.app import create_app
from loraplex_platform.config import Settings
from loraplex_platform.db import database as db
from loraplex_platform.db.database import Database
from loraplex_platform.db.inspection import unscoped_tables
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.openai.served_model import ServedModel

ON_SERVERS = os.environ.get("LORAPLEX_TEST_STORES") == "servers"
MIGRATED, SPARE = "migrated", "spare"
BUSY_S = 60  # on a busy machine a server may take longer than a request would wait for it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On servers, whatever does not stand on `settings` would do once more what it did without."""
    if ON_SERVERS:
        apart = [each for each in items if "settings" not in getattr(each, "fixturenames", ())]
        config.hook.pytest_deselected(items=apart)
        items[:] = [each for each in items if each not in apart]


@pytest.fixture(autouse=True)
def _nobody_reads_a_secret(request: pytest.FixtureRequest, watch: Watch) -> Iterator[None]:
    """Whatever a test does: no key, link, session or password is in what others may read."""
    has_home = "settings" in request.fixturenames
    home = request.getfixturevalue("tmp_path") if has_home else None
    server = request.getfixturevalue("postgres") if has_home and ON_SERVERS else None
    yield
    if home is not None:
        watch.show_files(home)
    if server is not None:
        watch.show_rows(server.rows_of(MIGRATED))
    leaks = watch.leaks()
    watch.put_away()
    assert leaks == []


@pytest.fixture(autouse=True)
def _statements_name_their_tenant() -> Iterator[None]:
    """Every statement of every test here says whose rows it means."""
    offences: list[str] = []

    def inspect(_: Connection, statement: object, *rest: Any) -> None:
        if isinstance(statement, Select | Update | Delete | CompoundSelect):
            options = {**statement.get_execution_options(), **rest[-1]}
            tables = unscoped_tables(statement, options)
            offences.extend(f"{sorted(tables)}: {statement}" for _ in tables)

    event.listen(Engine, "before_execute", inspect)
    yield
    event.remove(Engine, "before_execute", inspect)
    assert offences == []


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite file to copy from."""
    path = tmp_path_factory.mktemp("migrated") / "loraplex.sqlite3"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> tuple[Path, Seeded]:
    """A home with two tenants to copy from, and their keys."""
    home = tmp_path_factory.mktemp("seeded")
    return home, asyncio.run(seed(home_like(migrated.parent, home)))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel.load(tiny_model(tmp_path_factory.mktemp("model") / "tiny"), BASE)


@pytest.fixture
def settings(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    migrated: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """On SQLite and in-process stores; on Postgres and Redis when LORAPLEX_TEST_STORES says so."""
    home = home_like(migrated.parent, tmp_path)
    if not ON_SERVERS:
        return home
    server: PostgresServer = request.getfixturevalue("postgres")
    if "keys" in request.fixturenames:
        rows = request.getfixturevalue("seeded_rows")[0]
    else:
        rows = request.getfixturevalue("migrated_rows")
    server.refill(MIGRATED, rows)
    url, redis_url = server.url(MIGRATED), request.getfixturevalue("redis_url")
    monkeypatch.setenv("LORAPLEX_DATABASE_URL", url)  # commands stand on the same servers
    monkeypatch.setenv("LORAPLEX_REDIS_URL", redis_url)
    monkeypatch.setattr(db, "CONNECT_S", BUSY_S)
    return replace(home, database_url=url, redis_url=redis_url, redis_timeout_s=BUSY_S)


@pytest.fixture(scope="session")
def migrated_rows(postgres: PostgresServer) -> Rows:
    """What migrations leave in the databases that each test fills anew."""
    upgrade(postgres.create_database(MIGRATED))
    postgres.create_database(SPARE, MIGRATED)
    return postgres.rows_of(MIGRATED)


@pytest.fixture
def migrated_postgres_url(
    postgres: PostgresServer, migrated_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A migrated database without tenants for one test, whatever `settings` stand on."""
    monkeypatch.setattr(db, "CONNECT_S", BUSY_S)
    postgres.refill(SPARE, migrated_rows)
    return postgres.url(SPARE)


@pytest.fixture(scope="session")
def seeded_rows(
    postgres: PostgresServer, migrated_rows: Rows, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Rows, Path, Seeded]:
    """The same with the two tenants; with the home that holds the secret, and their keys."""
    postgres.refill(MIGRATED, migrated_rows)
    home = tmp_path_factory.mktemp("seeded_on_postgres")
    keys = asyncio.run(seed(Settings(home=home, database_url=postgres.url(MIGRATED))))
    return postgres.rows_of(MIGRATED), home, keys


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    database = Database(settings.database)
    yield database
    await database.close()


@pytest.fixture
def keys(request: pytest.FixtureRequest, settings: Settings, seeded: tuple[Path, Seeded]) -> Seeded:
    """Fills the home with the two tenants; ask for it before whatever reads the secret."""
    home, keys = seeded
    if ON_SERVERS:
        home, keys = request.getfixturevalue("seeded_rows")[1:]
    home_like(home, settings.home)
    return keys


@pytest.fixture
def engine() -> FakeEngine:
    return letter_engine()


@pytest.fixture
async def make_app(
    settings: Settings, keys: Seeded, engine: FakeEngine, model: ServedModel, watch: Watch
) -> AsyncIterator[Callable[..., FastAPI]]:
    """Makes apps that differ from the usual one; closes their databases afterwards."""
    made: list[FastAPI] = []

    def make(engine: FakeEngine = engine, limiter: Limiter | None = None, **change: Any) -> FastAPI:
        made.append(create_app(replace(settings, **change), engine, model, limiter=limiter))
        return made[-1]

    yield make
    for app in made:
        watch.show("metrics", app.state.metrics.exposition())
        await app.state.gate.close()
        await app.state.database.news.close()
        await app.state.database.close()


@pytest.fixture
def app(make_app: Callable[..., FastAPI]) -> FastAPI:
    return make_app()


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


@pytest.fixture
def acme(http: httpx2.AsyncClient, keys: Seeded) -> AdapterClient:
    return AdapterClient(http, keys.acme)


@pytest.fixture
def globex(http: httpx2.AsyncClient, keys: Seeded) -> AdapterClient:
    return AdapterClient(http, keys.globex)


@pytest.fixture
async def served(app: FastAPI, engine: FakeEngine, keys: Seeded) -> AsyncIterator[Served]:
    async with listening(app) as base_url, AsyncExitStack() as stack:
        yield Served(app, engine, base_url, keys, stack)
