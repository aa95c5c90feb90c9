"""Statements on the lines of jobs: the queue itself.

Whoever touches lines and their job's counters in one transaction takes the lines first.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import CursorResult, func, insert
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.batches.input_file import InputLine
from loraplex_platform.batches.models import Batch, BatchLine
from loraplex_platform.db.scope import (
    across_tenants,
    change_across_tenants,
    remove_across_tenants,
)

State = Literal["pending", "leased", "done", "failed", "cancelled", "expired"]
RELEASED: dict[str, None] = {"lease_owner": None, "lease_until": None}
READ_AT_ONCE = 200


class Claim(NamedTuple):
    """A line that is ours until the lease ends."""

    batch_id: str
    line_no: int
    offset: int
    num_bytes: int
    tokens: int
    attempts: int
    epoch: int

    @property
    def name(self) -> str:
        return f"{self.batch_id}:{self.line_no}"


class LineRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, batch: Batch, lines: Sequence[InputLine], now: datetime) -> None:
        rows = [
            {
                "tenant_id": batch.tenant_id,
                "batch_id": batch.id,
                "line_no": line.line_no,
                "custom_id": line.custom_id,
                "offset": line.offset,
                "num_bytes": line.num_bytes,
                "sort_key": line.sort_key,
                "tokens": line.tokens,
                "state": "pending",
                "attempts": 0,
                "not_before": now,
                "epoch": 0,
            }
            for line in lines
        ]
        await self._session.execute(insert(BatchLine), rows)

    async def remove(self, batch_id: str) -> None:
        await self._session.execute(
            remove_across_tenants(BatchLine).where(BatchLine.batch_id == batch_id)
        )

    async def claim(
        self, batch_id: str, count: int, owner: str, now: datetime, until: datetime
    ) -> list[Claim]:
        """Up to so many lines that nobody else has, those that begin alike together."""
        ready = (
            across_tenants(BatchLine)
            .where(
                BatchLine.batch_id == batch_id,
                BatchLine.state == "pending",
                BatchLine.not_before <= now,
            )
            .order_by(BatchLine.sort_key, BatchLine.line_no)
            .limit(count)
            .with_for_update(skip_locked=True)
        )
        lines = (await self._session.scalars(ready)).all()
        if not lines:
            return []
        await self._session.execute(
            change_across_tenants(BatchLine)
            .where(
                BatchLine.batch_id == batch_id,
                BatchLine.line_no.in_([line.line_no for line in lines]),
            )
            .values(
                state="leased",
                attempts=BatchLine.attempts + 1,
                epoch=BatchLine.epoch + 1,
                lease_owner=owner,
                lease_until=until,
            )
            .execution_options(synchronize_session=False)
        )
        return [
            Claim(
                batch_id,
                line.line_no,
                line.offset,
                line.num_bytes,
                line.tokens,
                line.attempts + 1,
                line.epoch + 1,
            )
            for line in lines
        ]

    async def renew(self, owner: str, until: datetime) -> None:
        """Everything this owner holds."""
        await self._session.execute(
            change_across_tenants(BatchLine)
            .where(BatchLine.state == "leased", BatchLine.lease_owner == owner)
            .values(lease_until=until)
        )

    async def still_ours(self, claims: Sequence[Claim]) -> set[Claim]:
        """Those of the claims that nobody has taken over, locked."""
        by_batch: defaultdict[str, dict[int, Claim]] = defaultdict(dict)
        for claim in sorted(claims):
            by_batch[claim.batch_id][claim.line_no] = claim
        ours = set()
        for batch_id, lines in by_batch.items():
            leased = (
                across_tenants(BatchLine)
                .where(
                    BatchLine.batch_id == batch_id,
                    BatchLine.line_no.in_(lines),
                    BatchLine.state == "leased",
                )
                .order_by(BatchLine.line_no)
                .with_for_update(of=BatchLine)
                .with_only_columns(BatchLine.line_no, BatchLine.epoch)
            )
            for line_no, epoch in await self._session.execute(leased):
                if lines[line_no].epoch == epoch:
                    ours.add(lines[line_no])
        return ours

    async def close(self, ends: Mapping[Claim, dict[str, Any]]) -> None:
        """Write the ends of lines that are ours, or give them back."""
        rows: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
        for claim, values in ends.items():
            row = {"batch_id": claim.batch_id, "line_no": claim.line_no, **RELEASED, **values}
            rows[tuple(row)].append(row)
        for alike in rows.values():  # one statement for all lines with the same columns
            await self._session.execute(change_across_tenants(BatchLine), alike)

    async def abandoned(self, now: datetime, limit: int) -> Sequence[BatchLine]:
        """Lines whose owner is gone, locked."""
        statement = (
            across_tenants(BatchLine)
            .where(BatchLine.state == "leased", BatchLine.lease_until < now)
            .order_by(BatchLine.batch_id, BatchLine.line_no)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        return (await self._session.scalars(statement)).all()

    async def give_up(self, batch_id: str, states: Sequence[State], state: State) -> int:
        """Lines in these states get a final one without a result; returns how many."""
        result = await self._session.execute(
            change_across_tenants(BatchLine)
            .where(BatchLine.batch_id == batch_id, BatchLine.state.in_(states))
            .values(state=state, lease_owner=None, lease_until=None)
        )
        assert isinstance(result, CursorResult)
        return result.rowcount

    async def count_by_state(self, batch_id: str) -> dict[str, int]:
        statement = across_tenants(BatchLine).where(BatchLine.batch_id == batch_id)
        counted = statement.with_only_columns(BatchLine.state, func.count()).group_by(
            BatchLine.state
        )
        return {state: count for state, count in await self._session.execute(counted)}

    async def next_in_order(self, batch_id: str, after: int) -> Sequence[BatchLine]:
        """The next lines by number, for the files."""
        statement = across_tenants(BatchLine).where(
            BatchLine.batch_id == batch_id, BatchLine.line_no > after
        )
        ordered = statement.order_by(BatchLine.line_no).limit(READ_AT_ONCE)
        return (await self._session.scalars(ordered)).all()
