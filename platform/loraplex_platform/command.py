"""What all commands share: the database they open, and how their mistakes are told."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import typer

from loraplex_platform.config import BadSetting, load_settings
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.errors import PlatformError
from loraplex_platform.kit.secrets import BadSecretFile
from loraplex_platform.news.opening import open_news
from loraplex_platform.supervision.base_model import ModelNotPrepared
from loraplex_platform.supervision.child import ChildCannotStart
from loraplex_platform.supervision.processes import PortTaken
from loraplex_platform.supervision.serve import HomeInUse

Result = TypeVar("Result")
SERVE_ERRORS = (ChildCannotStart, HomeInUse, ModelNotPrepared, PortTaken)
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's name.")]


@asynccontextmanager
async def open_database() -> AsyncIterator[Database]:
    """The configured database, migrated."""
    settings = load_settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(upgrade, settings.database)
    news = open_news(settings.redis_url, settings.redis_timeout_s)
    database = Database(settings.database, news=news)
    try:
        yield database
    finally:
        await news.close()
        await database.close()


def run(work: Coroutine[None, None, Result]) -> Result:
    """Run a command's body; what an operator did wrong is one line, not a traceback."""
    try:
        return asyncio.run(work)
    except PlatformError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from error
    except (BadSetting, BadSecretFile, *SERVE_ERRORS) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
