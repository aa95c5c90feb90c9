"""Alembic, from a checkout or from an installed wheel."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import NullPool, create_engine, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.pool import ConnectionPoolEntry

from loraplex_platform.db.database import (
    EVERY_TENANT,
    SEES,
    begin_sqlite,
    configure_sqlite,
    sync_url,
)

MIGRATION_LOCK = 0x6C706C78  # any number that is ours


def migrations_folder() -> Path:
    """`_migrations` beside this file in a wheel, `migrations/` at the root of a checkout."""
    packaged = Path(__file__).with_name("_migrations")
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "migrations"


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database to a revision; blocks. Processes that do it at once wait for each other."""
    with _exclusive(url) as config:
        command.upgrade(config, revision)


def downgrade(url: str, revision: str = "base") -> None:
    """Undo migrations down to a revision; blocks."""
    with _exclusive(url) as config:
        command.downgrade(config, revision)


@contextmanager
def _exclusive(url: str) -> Iterator[Config]:
    """Alembic on one connection, in one transaction that no other migration shares."""
    engine = create_engine(sync_url(url), poolclass=NullPool)
    is_sqlite = engine.dialect.name == "sqlite"
    if is_sqlite:
        event.listen(engine, "connect", configure_sqlite)
        event.listen(engine, "connect", _without_foreign_keys)
        event.listen(engine, "begin", begin_sqlite)
    with engine.begin() as connection:
        if not is_sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            connection.exec_driver_sql(SEES, (EVERY_TENANT,))
        config = alembic_config()
        config.attributes["connection"] = connection
        yield config


def _without_foreign_keys(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """A migration in batch mode replaces whole tables, which must not cascade."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=OFF")
    cursor.close()


def head_revision() -> str | None:
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


async def current_revision(session: AsyncSession) -> str | None:
    """What the database was last migrated to; None when it never was."""
    connection = await session.connection()
    return await connection.run_sync(
        lambda sync: MigrationContext.configure(sync).get_current_revision()
    )
