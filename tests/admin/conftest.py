"""The platform's own fixtures, with the console mounted."""

from collections.abc import AsyncIterator, Callable

import pytest
from fastapi import FastAPI
from tests.console_stand import ConsoleStand, console_stand
from tests.platform.conftest import (  # noqa: F401 (fixtures)
    _plain_tracebacks,
    engine,
    keys,
    make_app,
    migrated,
    model,
    seeded,
    served,
    settings,
)

from loraplex_admin.app import mount_console


@pytest.fixture
def app(make_app: Callable[..., FastAPI]) -> FastAPI:  # noqa: F811
    app = make_app()
    mount_console(app)
    return app


@pytest.fixture
async def stand(app: FastAPI) -> AsyncIterator[ConsoleStand]:
    async with console_stand(app) as stand:
        yield stand
