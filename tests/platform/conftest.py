"""A migrated database in a folder of its own for each test, and the app on it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.platform_stand import (
    BASE,
    Seeded,
    Served,
    fresh_home,
    letter_engine,
    listening,
    seed,
    tiny_model,
)

from loraplex_engine.fake import FakeEngine
from loraplex_platform.app import create_app
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.openai.served_model import ServedModel


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite file to copy from."""
    path = tmp_path_factory.mktemp("migrated") / "loraplex.sqlite3"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel.load(tiny_model(tmp_path_factory.mktemp("model") / "tiny"), BASE)


@pytest.fixture
def settings(tmp_path: Path, migrated: Path) -> Settings:
    return fresh_home(tmp_path, migrated)


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    database = Database(settings.database)
    yield database
    await database.close()


@pytest.fixture
async def keys(settings: Settings) -> Seeded:
    return await seed(settings)


@pytest.fixture
def engine() -> FakeEngine:
    return letter_engine()


@pytest.fixture
def app(settings: Settings, engine: FakeEngine, model: ServedModel) -> FastAPI:
    return create_app(settings, engine, model)


@pytest.fixture
async def served(app: FastAPI, engine: FakeEngine, keys: Seeded) -> AsyncIterator[Served]:
    async with listening(app) as base_url, AsyncExitStack() as stack:
        yield Served(app, engine, base_url, keys, stack)
