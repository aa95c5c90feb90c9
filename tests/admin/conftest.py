"""The platform's own fixtures, with the console mounted."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.adapter_stand import base_folder
from tests.console_stand import ConsoleStand, console_stand, seed_people
from tests.platform.conftest import (  # noqa: F401 (fixtures)
    _nobody_reads_a_secret,
    _statements_name_their_tenant,
    engine,
    keys,
    make_app,
    migrated,
    model,
    served,
    settings,
)
from tests.platform_stand import Seeded, home_like, seed

from loraplex_admin.app import mount_console


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model's folder, which uploads are judged by."""
    return base_folder(tmp_path_factory.mktemp("model") / "base")


@pytest.fixture
def app(make_app: Callable[..., FastAPI], base: Path) -> FastAPI:  # noqa: F811 (a fixture)
    app = make_app(model=str(base))
    mount_console(app)
    return app


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> tuple[Path, Seeded]:  # noqa: F811 (a fixture)
    """A home with two tenants and people to copy from; their sessions lie in a file."""
    home = tmp_path_factory.mktemp("seeded")
    settings = home_like(migrated.parent, home)  # noqa: F811 (a fixture)
    keys = asyncio.run(seed(settings))  # noqa: F811 (a fixture)
    (home / "sessions.json").write_text(json.dumps(asyncio.run(seed_people(settings))))
    return home, keys


@pytest.fixture
async def stand(app: FastAPI, seeded: tuple[Path, Seeded]) -> AsyncIterator[ConsoleStand]:
    sessions = json.loads((seeded[0] / "sessions.json").read_text())
    async with console_stand(app, sessions) as stand:
        yield stand
