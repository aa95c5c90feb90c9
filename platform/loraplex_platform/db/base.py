"""The declarative base, and the columns that tables share."""

from datetime import UTC, datetime
from typing import Any, ClassVar
from zlib import crc32

from sqlalchemy import JSON, DateTime, Dialect, ForeignKey, FromClause, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column
from sqlalchemy.types import TypeDecorator

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime on every database (SQLite keeps no zone)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        assert value.tzinfo is not None, "naive datetime"
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """All tables; constraint names follow one convention so that migrations can name them."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads the plain dict)
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[str]: JSON,
    }


class TenantOwned:
    """A row that belongs to one tenant: read it through `for_tenant` or `visible_to`."""

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), sort_order=-1)


class PerhapsTenantOwned:
    """A row of one tenant, or of the platform itself: read it through `visible_to`."""

    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenant.id"), sort_order=-1)


class Audited:
    """A row that changes only together with the audit log: see `audit.trail.changing`.

    Columns marked SECRET never appear there.
    """


class Content:
    """A row that holds what a tenant stored: it goes when its tenant closes.

    It goes earlier when the moment in `aged_by` is longer ago than the tenant keeps things.
    """

    aged_by: ClassVar[str | None] = None  # a column; None: it stays until somebody removes it


SECRET = {"secret": True}  # for mapped_column(info=SECRET)


class RevisedByContent:
    """A row of which nobody counts the changes: another content is another revision."""

    __table__: ClassVar[FromClause]

    @property
    def revision(self) -> int:
        content = [getattr(self, column.key) for column in self.__table__.columns]
        return crc32(repr(content).encode()) % 10**9


class Revised:
    """A row whose `revision` counts its changes: an update that read an older one fails."""

    revision: Mapped[int] = mapped_column(sort_order=100)

    @declared_attr.directive
    def __mapper_args__(cls) -> dict[str, Any]:
        return {"version_id_col": cls.__table__.c.revision}  # type: ignore[attr-defined]
