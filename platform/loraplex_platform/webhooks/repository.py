"""Statements on webhooks and their outbox."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import or_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.paging import Sorting, page_after
from loraplex_platform.db.scope import across_tenants, visible_to
from loraplex_platform.events.models import Delivery, Webhook
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.tenants.models import Tenant

WEBHOOKS = Sorting(Webhook.id, {"since": Webhook.id, "url": Webhook.url})


class WebhookRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, row: Webhook | Delivery) -> None:
        self._session.add(row)
        await self._session.flush()

    async def remove(self, webhook: Webhook) -> None:
        await self._session.delete(webhook)
        await self._session.flush()

    async def find(self, by: Administrator, tenant_id: str, webhook_id: str) -> Webhook | None:
        statement = visible_to(by, Webhook).where(
            Webhook.tenant_id == tenant_id, Webhook.id == webhook_id
        )
        return await self._session.scalar(statement)

    async def page(
        self,
        by: Administrator,
        tenant_id: str | None,
        after: str | None,
        limit: int,
        order: str = "",
    ) -> Sequence[Webhook]:
        """Of one tenant, or (None) of every tenant that the administrator sees."""
        seen = visible_to(by, Webhook)
        if tenant_id is not None:
            seen = seen.where(Webhook.tenant_id == tenant_id)
        return await WEBHOOKS.page(self._session, seen, order, after, limit)

    async def of_tenant(self, tenant_id: str) -> Sequence[Webhook]:
        statement = across_tenants(Webhook).where(Webhook.tenant_id == tenant_id)
        return (await self._session.scalars(statement)).all()

    async def of_closed(self, before: datetime) -> Sequence[Webhook]:
        """Of tenants that are closed, once nothing is to be told or that was long enough ago."""
        waiting = across_tenants(Delivery).where(
            Delivery.webhook_id == Webhook.id, Delivery.next_attempt_at.is_not(None)
        )
        statement = across_tenants(Webhook).join(Tenant, Tenant.id == Webhook.tenant_id)
        over = or_(Tenant.closed_at < before, ~waiting.exists())
        return (
            await self._session.scalars(statement.where(Tenant.closed_at.is_not(None), over))
        ).all()

    async def webhook(self, webhook_id: str) -> Webhook | None:
        return await self._session.scalar(across_tenants(Webhook).where(Webhook.id == webhook_id))

    async def has_due(self, now: datetime) -> bool:
        statement = across_tenants(Delivery).where(Delivery.next_attempt_at <= now)
        return await self._session.scalar(statement.limit(1)) is not None

    async def due(self, now: datetime, limit: int) -> Sequence[Delivery]:
        """Locked; what another process has locked is left to it."""
        statement = across_tenants(Delivery).where(Delivery.next_attempt_at <= now)
        statement = statement.order_by(Delivery.next_attempt_at).limit(limit)
        return (await self._session.scalars(statement.with_for_update(skip_locked=True))).all()

    async def delivery(self, delivery_id: str) -> Delivery | None:
        statement = across_tenants(Delivery).where(Delivery.id == delivery_id)
        return await self._session.scalar(statement.with_for_update())

    async def deliveries(
        self, by: Administrator, webhook: Webhook, after: str | None, limit: int
    ) -> Sequence[Delivery]:
        own = visible_to(by, Delivery).where(
            Delivery.tenant_id == webhook.tenant_id, Delivery.webhook_id == webhook.id
        )
        return (await self._session.scalars(page_after(own, Delivery.id, after, limit))).all()

    async def latest(
        self, by: Administrator, webhook: Webhook, before: str | None, limit: int
    ) -> Sequence[Delivery]:
        """Newest first."""
        own = visible_to(by, Delivery).where(
            Delivery.tenant_id == webhook.tenant_id, Delivery.webhook_id == webhook.id
        )
        if before is not None:
            own = own.where(Delivery.id < before)
        return (await self._session.scalars(own.order_by(Delivery.id.desc()).limit(limit))).all()
