"""Alembic's environment: runs on the connection it is given, or on the configured database."""

from typing import Literal

from alembic import context
from sqlalchemy import Connection, NullPool, create_engine

from loraplex_platform.config import load_settings
from loraplex_platform.db.base import UtcDateTime
from loraplex_platform.db.database import EVERY_TENANT, SEES, sync_url
from loraplex_platform.models import Base


def render(kind: str, item: object, _: object) -> str | Literal[False]:
    """Migrations name plain types only: they must not change with the code."""
    return "sa.DateTime(timezone=True)" if isinstance(item, UtcDateTime) else False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=render,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = create_engine(sync_url(load_settings().database), poolclass=NullPool)
    with engine.begin() as own:
        if own.dialect.name == "postgresql":
            own.exec_driver_sql(SEES, (EVERY_TENANT,))
        run(own)
