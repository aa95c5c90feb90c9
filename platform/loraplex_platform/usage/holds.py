"""Spend holds: what running requests may still spend, durable until the limiter knows the truth.

A hold is written before the engine works. The transaction of the usage event releases it and says what
was used: from then on the row is the outbox of the limiter's settlement, until somebody has delivered
it. A hold that nobody releases expires.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import or_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants, change_across_tenants, remove_across_tenants
from loraplex_platform.usage.billing_models import SpendHold
from loraplex_platform.usage.rollups import Event


class Used(NamedTuple):
    """What a request took in the end."""

    tokens: int
    pico: int


def hold_id_of(event: Event) -> str:
    """The claim that the event's request was admitted with; each try of a batch line has its own."""
    own_id = event.request_id if event.job_id is None else event.client_request_id
    assert own_id is not None, "a batch line's event names its try"
    return own_id


class HoldRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(
        self, id: str, tenant_id: str, claim: dict[str, Any], expires_at: datetime
    ) -> None:
        self._session.add(SpendHold(id=id, tenant_id=tenant_id, claim=claim, expires_at=expires_at))
        await self._session.flush()

    async def release(self, used: Mapping[str, Used], now: datetime) -> None:
        """Those that there are; the rest had nothing to hold."""
        ids = across_tenants(SpendHold).with_only_columns(SpendHold.id)
        held = await self._session.scalars(ids.where(SpendHold.id.in_(used)))
        rows = [
            {
                "id": id,
                "released_at": now,
                "used_tokens": used[id].tokens,
                "used_pico": used[id].pico,
            }
            for id in sorted(held)
        ]
        if rows:
            await self._session.execute(change_across_tenants(SpendHold), rows)

    async def undelivered(self, before: datetime, now: datetime, limit: int) -> Sequence[SpendHold]:
        """Released before that moment, or expired."""
        statement = across_tenants(SpendHold).where(
            or_(SpendHold.released_at < before, SpendHold.expires_at < now)
        )
        return (await self._session.scalars(statement.order_by(SpendHold.id).limit(limit))).all()

    async def open_of(self, tenant_id: str, now: datetime) -> Sequence[SpendHold]:
        """What a tenant's running requests hold."""
        statement = across_tenants(SpendHold).where(
            SpendHold.tenant_id == tenant_id,
            SpendHold.released_at.is_(None),
            SpendHold.expires_at > now,
        )
        return (await self._session.scalars(statement.order_by(SpendHold.id))).all()

    async def remove(self, ids: Collection[str]) -> None:
        statement = remove_across_tenants(SpendHold).where(SpendHold.id.in_(ids))
        await self._session.execute(statement)
