"""Alembic, from a checkout or from an installed wheel."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.database import sync_url


def migrations_folder() -> Path:
    """`_migrations` beside this file in a wheel, `migrations/` at the root of a checkout."""
    packaged = Path(__file__).with_name("_migrations")
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "migrations"


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to a revision; blocks."""
    engine = create_engine(sync_url(url), poolclass=NullPool)
    with engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def head_revision() -> str | None:
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


async def current_revision(session: AsyncSession) -> str | None:
    """What the database was last migrated to; None when it never was."""
    connection = await session.connection()
    return await connection.run_sync(
        lambda sync: MigrationContext.configure(sync).get_current_revision()
    )
