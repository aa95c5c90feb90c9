"""Events are written in the transaction of the fact that they tell of."""

from dataclasses import asdict
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants
from loraplex_platform.events.catalogue import PAYLOADS, EventType, Payload
from loraplex_platform.events.models import Delivery, Webhook
from loraplex_platform.kit.ids import new_id


async def emit(
    session: AsyncSession, tenant_id: str, type: EventType, payload: Payload, now: datetime
) -> None:
    """Tell the tenant's webhooks, if this unit of work is committed."""
    statement = across_tenants(Webhook).where(
        Webhook.tenant_id == tenant_id, Webhook.is_active.is_(True)
    )
    for webhook in await session.scalars(statement):
        if type in webhook.events or "*" in webhook.events:
            session.add(delivery_to(webhook, type, payload, now))
    await session.flush()


def delivery_to(webhook: Webhook, type: EventType, payload: Payload, now: datetime) -> Delivery:
    assert isinstance(payload, PAYLOADS[type])
    return Delivery(
        id=new_id("msg"),
        tenant_id=webhook.tenant_id,
        webhook_id=webhook.id,
        type=type,
        data=asdict(payload),
        created_at=now,
        attempts=0,
        next_attempt_at=now,
    )
