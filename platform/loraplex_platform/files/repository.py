"""Statements on files."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import CursorResult, Select, and_, func, or_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import (
    across_tenants,
    change_across_tenants,
    for_tenant,
    remove_across_tenants,
)
from loraplex_platform.files.models import StoredFile
from loraplex_platform.files.schemas import FileQuery
from loraplex_platform.kit.principal import Principal

File = StoredFile


class FileRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, file: StoredFile) -> None:
        """A new row, or one from an earlier session with what has changed since."""
        self._session.add(file)
        await self._session.flush()

    async def get(
        self, principal: Principal, file_id: str, *, to_change: bool = False
    ) -> StoredFile | None:
        """The tenant's living file."""
        own = _living(principal).where(File.id == file_id)
        return await self._session.scalar(own.with_for_update() if to_change else own)

    async def raw(self, file_id: str) -> StoredFile | None:
        """Any tenant's file, deleted or not: for jobs that hold it."""
        return await self._session.scalar(across_tenants(File).where(File.id == file_id))

    async def page(self, principal: Principal, query: FileQuery) -> Sequence[StoredFile]:
        """One more than the limit; None when the cursor is unknown."""
        statement = _living(principal)
        is_ascending = query.order == "asc"
        if query.purpose is not None:
            statement = statement.where(File.purpose == query.purpose)
        if query.after is not None:
            cursor = (
                for_tenant(principal, File)
                .where(File.id == query.after)
                .with_only_columns(File.created_at)
                .scalar_subquery()
            )
            same = File.created_at == cursor
            if is_ascending:
                later = or_(File.created_at > cursor, and_(same, File.id > query.after))
            else:
                later = or_(File.created_at < cursor, and_(same, File.id < query.after))
            statement = statement.where(later)
        keys = (File.created_at, File.id)
        order = [key.asc() if is_ascending else key.desc() for key in keys]
        return (
            await self._session.scalars(statement.order_by(*order).limit(query.limit + 1))
        ).all()

    async def hold(self, file_id: str, more: int) -> None:
        """Count a job that reads the file, or, with -1, one that is done with it."""
        await self._session.execute(
            change_across_tenants(File).where(File.id == file_id).values(holds=File.holds + more)
        )

    async def expire(self, now: datetime) -> None:
        await self._session.execute(
            change_across_tenants(File)
            .where(File.expires_at <= now, File.deleted_at.is_(None))
            .values(deleted_at=now)
        )

    async def living_of_tenant(self, tenant_id: str) -> Sequence[StoredFile]:
        statement = across_tenants(File).where(
            File.tenant_id == tenant_id, File.ready_at.is_not(None), File.deleted_at.is_(None)
        )
        return (await self._session.scalars(statement.order_by(File.id))).all()

    async def expire_older(
        self, tenant_id: str, before: datetime, now: datetime, limit: int
    ) -> int:
        """Some of a tenant's files that were made before then; how many there were."""
        old = across_tenants(File).where(
            File.tenant_id == tenant_id, File.created_at < before, File.deleted_at.is_(None)
        )
        ids = old.with_only_columns(File.id).limit(limit)
        result = await self._session.execute(
            change_across_tenants(File).where(File.id.in_(ids)).values(deleted_at=now)
        )
        assert isinstance(result, CursorResult)
        return result.rowcount

    async def delete_all(self, tenant_id: str, now: datetime) -> None:
        """What a tenant that goes leaves behind, its jobs first; `disposable` finds it."""
        deleted_at = func.coalesce(StoredFile.deleted_at, now)
        statement = change_across_tenants(StoredFile).where(StoredFile.tenant_id == tenant_id)
        await self._session.execute(statement.values(deleted_at=deleted_at, holds=0))

    async def disposable(self, stale: datetime, limit: int) -> Sequence[str]:
        """Files whose content can go: deleted and held by nobody, or never finished since then."""
        statement = across_tenants(File).where(
            or_(
                and_(File.deleted_at.is_not(None), File.holds == 0),
                and_(File.ready_at.is_(None), File.created_at < stale),
            )
        )
        ids = statement.with_only_columns(File.id).limit(limit)
        return (await self._session.execute(ids)).scalars().all()

    async def remove(self, file_id: str) -> None:
        await self._session.execute(remove_across_tenants(File).where(File.id == file_id))


def _living(principal: Principal) -> Select[StoredFile]:
    return for_tenant(principal, File).where(File.ready_at.is_not(None), File.deleted_at.is_(None))
