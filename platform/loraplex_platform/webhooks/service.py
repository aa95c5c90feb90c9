"""Rules about webhooks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing, note
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import WebhookTest
from loraplex_platform.events.models import Delivery, Webhook
from loraplex_platform.events.outbox import delivery_to
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidRequest, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.kit.sealing import Sealer
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.tenants.service import found
from loraplex_platform.webhooks.outbox import SECRET_LABEL
from loraplex_platform.webhooks.repository import WebhookRepository
from loraplex_platform.webhooks.sender import Refused, Sender
from loraplex_platform.webhooks.signing import new_secret


class NewWebhook(NamedTuple):
    """A webhook and its secret, which is seen this once."""

    webhook: Webhook
    secret: str


class WebhookService:
    def __init__(self, database: Database, secrets: Secrets, sender: Sender, clock: Clock) -> None:
        self._database = database
        self._sealer = Sealer(secrets, SECRET_LABEL)
        self._sender = sender
        self._clock = clock

    async def create(
        self, by: Administrator, tenant_id: str, url: str, events: Sequence[str]
    ) -> NewWebhook:
        self._check(url)
        secret = new_secret()
        webhook = Webhook(
            id=new_id("wh"),
            tenant_id=tenant_id,
            url=url,
            events=list(events),
            sealed_secret=self._sealer.seal(secret.encode()),
            is_active=True,
            created_at=self._clock.now(),
        )
        async with changing(self._database, by, self._clock) as session:
            await found(session, by, tenant_id)
            await WebhookRepository(session).add(webhook)
        return NewWebhook(webhook, secret)

    async def page(
        self,
        by: Administrator,
        tenant_id: str | None,
        *,
        after: str | None = None,
        limit: int = 20,
        order: str = "",
    ) -> Sequence[Webhook]:
        """Of one tenant, or (None) of every tenant that the administrator sees."""
        async with self._database.reading(by) as session:
            if tenant_id is not None:
                await found(session, by, tenant_id)
            return await WebhookRepository(session).page(by, tenant_id, after, limit, order)

    async def find(self, by: Administrator, tenant_id: str, webhook_id: str) -> Webhook:
        async with self._database.reading(by) as session:
            return await _found(session, by, tenant_id, webhook_id)

    async def change(
        self,
        by: Administrator,
        tenant_id: str,
        webhook_id: str,
        values: Mapping[str, object],
        *,
        revision: int | None = None,
    ) -> Webhook:
        if "url" in values:
            self._check(str(values["url"]))
        async with changing(self._database, by, self._clock) as session:
            webhook = await _found(session, by, tenant_id, webhook_id)
            check_revision(webhook, revision)
            for name, value in values.items():
                setattr(webhook, name, value)
        return webhook

    async def remove(self, by: Administrator, tenant_id: str, webhook_id: str) -> None:
        """What it has not been told yet, it is not told any more."""
        async with changing(self._database, by, self._clock) as session:
            webhook = await _found(session, by, tenant_id, webhook_id)
            await WebhookRepository(session).remove(webhook)

    async def test(self, by: Administrator, tenant_id: str, webhook_id: str) -> Delivery:
        """Post `webhook.test` to it, like any other event."""
        async with self._database.unit_of_work(by) as session:
            webhook = await _found(session, by, tenant_id, webhook_id)
            delivery = delivery_to(
                webhook, "webhook.test", WebhookTest(webhook.id), self._clock.now()
            )
            await WebhookRepository(session).add(delivery)
            note(session, webhook, "tested", by.actor, self._clock, {"url": webhook.url})
        return delivery

    async def replay(
        self, by: Administrator, tenant_id: str, webhook_id: str, delivery_id: str
    ) -> Delivery:
        """Post it once more, under the id it had: a receiver that knows it drops it."""
        async with self._database.unit_of_work(by) as session:
            webhook = await _found(session, by, tenant_id, webhook_id)
            delivery = await WebhookRepository(session).delivery(delivery_id)
            if delivery is None or delivery.webhook_id != webhook.id:
                raise NotFound(f"there is no delivery {delivery_id!r}", param="delivery_id")
            delivery.attempts, delivery.delivered_at = 0, None
            delivery.next_attempt_at = self._clock.now()
            sent = {"value": delivery_id}
            note(session, webhook, "replayed", by.actor, self._clock, sent)
        return delivery

    async def deliveries(
        self,
        by: Administrator,
        tenant_id: str,
        webhook_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
    ) -> Sequence[Delivery]:
        async with self._database.reading(by) as session:
            webhook = await _found(session, by, tenant_id, webhook_id)
            return await WebhookRepository(session).deliveries(by, webhook, after, limit)

    async def log(
        self,
        by: Administrator,
        tenant_id: str,
        webhook_id: str,
        *,
        before: str | None = None,
        limit: int = 20,
    ) -> Sequence[Delivery]:
        """Newest first."""
        async with self._database.reading(by) as session:
            webhook = await _found(session, by, tenant_id, webhook_id)
            return await WebhookRepository(session).latest(by, webhook, before, limit)

    def _check(self, url: str) -> None:
        try:
            self._sender.check(url)
        except (Refused, ValueError) as error:
            raise InvalidRequest(str(error), param="url") from error


async def _found(
    session: AsyncSession, by: Administrator, tenant_id: str, webhook_id: str
) -> Webhook:
    webhook = await WebhookRepository(session).find(by, tenant_id, webhook_id)
    if webhook is None:
        raise NotFound(f"there is no webhook {webhook_id!r}", param="webhook_id")
    return webhook
