"""Statements on batch jobs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import CursorResult, and_, func, or_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.batches.models import UNFINISHED, Batch
from loraplex_platform.batches.schemas import BatchQuery
from loraplex_platform.db.paging import Sorting, nth_newest
from loraplex_platform.db.scope import (
    across_tenants,
    change_across_tenants,
    for_tenant,
    visible_to,
)
from loraplex_platform.kit.principal import Administrator, Principal

SEARCHED = 2_000  # jobs, where an order or a state has no index
BATCHES = Sorting(
    Batch.id,
    {
        "since": Batch.created_at,
        "status": Batch.status,
        "lines": Batch.total,
        "failed": Batch.failed,
        "running": Batch.running,
        "tokens": Batch.input_tokens + Batch.output_tokens,
    },
)


@dataclass(frozen=True, slots=True)
class BatchFilter:
    """Which jobs to show; None does not filter."""

    tenant_id: str | None = None
    status: str | None = None

    def is_searched(self, order: str) -> bool:
        """Whether only the newest SEARCHED jobs are looked at, of the tenant or of all."""
        column = order.removeprefix("-")
        return self.status is not None or (column in BATCHES.columns and column != "since")


class BatchRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, batch: Batch) -> None:
        self._session.add(batch)
        await self._session.flush()

    async def get(
        self, principal: Principal, batch_id: str, *, to_change: bool = False
    ) -> Batch | None:
        own = for_tenant(principal, Batch).where(Batch.id == batch_id)
        return await self._session.scalar(own.with_for_update() if to_change else own)

    async def page(self, principal: Principal, query: BatchQuery) -> Sequence[Batch]:
        """Newest first, one more than the limit."""
        statement = for_tenant(principal, Batch)
        if query.after is not None:
            cursor = (
                for_tenant(principal, Batch)
                .where(Batch.id == query.after)
                .with_only_columns(Batch.created_at)
                .scalar_subquery()
            )
            same = Batch.created_at == cursor
            statement = statement.where(
                or_(Batch.created_at < cursor, and_(same, Batch.id < query.after))
            )
        newest = statement.order_by(Batch.created_at.desc(), Batch.id.desc())
        return (await self._session.scalars(newest.limit(query.limit + 1))).all()

    async def known_as(self, principal: Principal, idempotency_key: str) -> Batch | None:
        """The tenant's job that was created with this key."""
        named = Batch.idempotency_key == idempotency_key
        return await self._session.scalar(for_tenant(principal, Batch).where(named))

    async def nth_newest(self, principal: Principal, number: int) -> Batch | None:
        """The tenant's job after which it made `number` - 1 others."""
        newest = for_tenant(principal, Batch).order_by(Batch.created_at.desc(), Batch.id.desc())
        return await self._session.scalar(newest.offset(number - 1).limit(1))

    async def any_of(self, batch_id: str) -> Batch | None:
        """Any tenant's job, for the platform's own work."""
        return await self._session.scalar(across_tenants(Batch).where(Batch.id == batch_id))

    async def those(self, batch_ids: Collection[str]) -> Sequence[Batch]:
        """Any tenants' jobs, for the platform's own work."""
        statement = across_tenants(Batch).where(Batch.id.in_(batch_ids))
        return (await self._session.scalars(statement)).all()

    async def unfinished(self) -> Sequence[Batch]:
        """What is to be worked on, oldest first."""
        statement = across_tenants(Batch).where(Batch.status.in_(UNFINISHED))
        return (await self._session.scalars(statement.order_by(Batch.created_at, Batch.id))).all()

    async def seen(
        self, by: Administrator, wanted: BatchFilter, order: str, after: str | None, limit: int
    ) -> Sequence[Batch]:
        """Newest first, or in an order of BATCHES; see BatchFilter.is_searched."""
        statement = visible_to(by, Batch)
        if wanted.tenant_id is not None:
            statement = statement.where(Batch.tenant_id == wanted.tenant_id)
        if wanted.is_searched(order):
            since = await nth_newest(self._session, statement, Batch.created_at, SEARCHED)
            if since is not None:
                statement = statement.where(Batch.created_at >= since)
        if wanted.status is not None:
            statement = statement.where(Batch.status == wanted.status)
        is_known = order.removeprefix("-") in BATCHES.columns
        return await BATCHES.page(
            self._session, statement, order if is_known else "-since", after, limit
        )

    async def lease(self, batch_id: str, now: datetime, until: datetime) -> Batch | None:
        """Become the one who validates or closes this job.

        None when somebody else is, or has: whoever looked before that saw another state.
        """
        free = or_(Batch.lease_until.is_(None), Batch.lease_until < now)
        statement = across_tenants(Batch).where(Batch.id == batch_id, free)
        batch = await self._session.scalar(statement.with_for_update(skip_locked=True))
        if batch is None or not batch.has_step_due(now):
            return None
        batch.epoch += 1
        batch.lease_until = until
        await self._session.flush()
        return batch

    async def change(
        self, held: Batch, values: Mapping[str, Any], *, status: str | None = None
    ) -> bool:
        """Change a job that is leased; False when the lease, or the given status, is lost."""
        statement = change_across_tenants(Batch).where(
            Batch.id == held.id, Batch.epoch == held.epoch
        )
        if status is not None:
            statement = statement.where(Batch.status == status)
        return await self._changes_one(statement.values(**values))

    async def count(self, batch_id: str, values: Mapping[str, int]) -> None:
        """Add to counters."""
        added = {name: getattr(Batch, name) + more for name, more in values.items()}
        await self._session.execute(
            change_across_tenants(Batch).where(Batch.id == batch_id).values(**added)
        )

    async def finalize_if_done(self, batch_id: str, now: datetime) -> bool:
        """A job whose last line is done goes on to its files."""
        done = Batch.completed + Batch.failed == Batch.total
        return await self._changes_one(
            change_across_tenants(Batch)
            .where(Batch.id == batch_id, Batch.status == "in_progress", done)
            .values(status="finalizing", finalizing_at=now)
        )

    async def enqueued_tokens(
        self, tenant_id: str, project_id: str | None, key_id: str | None
    ) -> int:
        """Estimated tokens of lines that wait or run."""
        statement = across_tenants(Batch).where(
            Batch.tenant_id == tenant_id, Batch.status.in_(UNFINISHED)
        )
        if project_id is not None:
            statement = statement.where(Batch.project_id == project_id)
        if key_id is not None:
            statement = statement.where(Batch.key_id == key_id)
        total = func.coalesce(func.sum(Batch.enqueued_tokens), 0)
        return int(await self._session.scalar(statement.with_only_columns(total)) or 0)

    async def lock_tenant(self, tenant_id: str) -> None:
        """Jobs of one tenant that start at once are counted one after the other."""
        if self._session.get_bind().dialect.name == "postgresql":
            await self._session.execute(
                func.pg_advisory_xact_lock(func.hashtext(tenant_id)).select()
            )

    async def pause(self, batch_id: str, at: datetime | None) -> None:
        await self._session.execute(
            change_across_tenants(Batch).where(Batch.id == batch_id).values(paused_at=at)
        )

    async def _changes_one(self, statement: Any) -> bool:
        result = await self._session.execute(statement)
        assert isinstance(result, CursorResult)
        return result.rowcount == 1
