"""A migrated database in a folder of its own for each test."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite file to copy from."""
    path = tmp_path_factory.mktemp("migrated") / "loraplex.sqlite3"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def settings(tmp_path: Path, migrated: Path) -> Settings:
    shutil.copy(migrated, tmp_path / "loraplex.sqlite3")
    return Settings(home=tmp_path, engine_wait_s=1.0)


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    database = Database(settings.database)
    yield database
    await database.close()
