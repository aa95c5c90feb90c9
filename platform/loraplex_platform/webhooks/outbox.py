"""Events are posted until they arrive."""

import asyncio
import json
from datetime import timedelta
from typing import NamedTuple

import structlog

from loraplex_platform.db.database import UNREACHABLE, Database
from loraplex_platform.events.models import Delivery
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.sealing import Sealer
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.webhooks.repository import WebhookRepository
from loraplex_platform.webhooks.sender import Refused, Sender
from loraplex_platform.webhooks.signing import headers_of

SECRET_LABEL = "loraplex webhook secrets"
AT_ONCE = 10
POLL_S = 1.0
LEASE = timedelta(minutes=2)  # of a delivery whose process died
WAITS = tuple(
    timedelta(seconds=s) for s in (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
)

log = structlog.get_logger(__name__)


class Message(NamedTuple):
    """A delivery that is ours to post."""

    id: str
    url: str
    sealed_secret: bytes
    body: bytes


class Outbox:
    """Any number of processes may run one: a delivery is claimed before it is posted."""

    def __init__(self, database: Database, secrets: Secrets, sender: Sender, clock: Clock) -> None:
        self._database = database
        self._sealer = Sealer(secrets, SECRET_LABEL)
        self._sender = sender
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                while await self.deliver():
                    pass
            except UNREACHABLE as error:
                log.warning("webhooks_not_read", error=type(error).__name__)
            await asyncio.sleep(POLL_S)

    async def deliver(self) -> int:
        """Post what is due; how many that were."""
        messages = await self._claim()
        await asyncio.gather(*(self._post(message) for message in messages))
        return len(messages)

    async def _claim(self) -> list[Message]:
        now = self._clock.now()
        async with self._database.reading() as session:  # most of the time there is nothing to do
            if not await WebhookRepository(session).has_due(now):
                return []
        messages = []
        async with self._database.unit_of_work() as session:
            webhooks = WebhookRepository(session)
            for delivery in await webhooks.due(now, AT_ONCE):
                webhook = await webhooks.webhook(delivery.webhook_id)
                if webhook is None or not webhook.is_active:
                    delivery.next_attempt_at, delivery.last_answer = None, "switched off"
                    continue
                delivery.attempts += 1
                delivery.next_attempt_at = now + LEASE
                messages.append(
                    Message(delivery.id, webhook.url, webhook.sealed_secret, _body(delivery))
                )
        return messages

    async def _post(self, message: Message) -> None:
        secret = self._sealer.open(message.sealed_secret).decode()
        timestamp = int(self._clock.now().timestamp())
        headers = headers_of(secret, message.id, timestamp, message.body)
        try:
            status = await asyncio.to_thread(self._sender.post, message.url, message.body, headers)
        except Refused as error:
            answer, is_delivered = f"refused: {error}", False
        except OSError as error:
            answer, is_delivered = type(error).__name__, False
        else:
            answer, is_delivered = str(status), 200 <= status < 300
        await self._note(message.id, answer, is_delivered=is_delivered)

    async def _note(self, delivery_id: str, answer: str, *, is_delivered: bool) -> None:
        now = self._clock.now()
        async with self._database.unit_of_work() as session:
            delivery = await WebhookRepository(session).delivery(delivery_id)
            if delivery is None:
                return  # its webhook was removed meanwhile
            delivery.last_answer = answer
            delivery.next_attempt_at = None
            if is_delivered:
                delivery.delivered_at = now
            elif delivery.attempts <= len(WAITS):
                delivery.next_attempt_at = now + WAITS[delivery.attempts - 1]


def _body(delivery: Delivery) -> bytes:
    content = {
        "type": delivery.type,
        "timestamp": delivery.created_at.isoformat(),
        "data": delivery.data,
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
