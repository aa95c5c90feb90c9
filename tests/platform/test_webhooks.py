"""Webhooks: events arrive at least once, signed, in spite of failures, and nowhere private."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest
from tests.platform_stand import content_of
from tests.webhook_receiver import Receiver, receiving

from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import BatchEvent, EventType
from loraplex_platform.events.outbox import emit
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.models import Delivery, Tenant
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.webhooks.outbox import LEASE, WAITS, Outbox
from loraplex_platform.webhooks.sender import Refused, Sender
from loraplex_platform.webhooks.service import NewWebhook, WebhookService


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@dataclass
class Stand:
    database: Database
    clock: ManualClock
    webhooks: WebhookService
    outbox: Outbox
    tenant: Tenant
    made: NewWebhook

    async def emit(self, type: EventType = "batch.completed") -> None:
        async with self.database.unit_of_work() as session:
            await emit(session, self.tenant.id, type, BatchEvent("b_1"), self.clock.now())

    async def deliveries(self) -> list[Delivery]:
        where = (self.tenant.id, self.made.webhook.id)
        return list(await self.webhooks.deliveries(COMMAND_LINE, *where))


@pytest.fixture
async def stand(database: Database, tmp_path: Path, receiver: Receiver) -> Stand:
    clock, secrets = ManualClock(), Secrets.load_or_create(tmp_path)
    sender = Sender([ip_network("127.0.0.0/8")], timeout_s=60)
    webhooks = WebhookService(database, secrets, sender, clock)
    tenant = await TenantService(database, clock).create("acme")
    made = await webhooks.create(COMMAND_LINE, tenant.id, receiver.url, ["batch.completed"])
    outbox = Outbox(database, secrets, sender, clock)
    return Stand(database, clock, webhooks, outbox, tenant, made)


async def test_event_arrives_signed(stand: Stand, receiver: Receiver) -> None:
    await stand.emit()
    await stand.outbox.deliver()
    [(headers, body)] = receiver.got
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(stand.made.secret.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert json.loads(body)["type"] == "batch.completed"
    assert json.loads(body)["data"] == {"id": "b_1"}


async def test_event_that_nobody_asked_for_is_not_kept(stand: Stand) -> None:
    await stand.emit("batch.failed")
    assert await stand.deliveries() == []


async def test_event_of_a_failed_unit_of_work_is_not_told(stand: Stand) -> None:
    async def fail() -> None:
        async with stand.database.unit_of_work() as session:
            await emit(
                session, stand.tenant.id, "batch.completed", BatchEvent("b_1"), stand.clock.now()
            )
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await stand.outbox.deliver() == 0


async def test_failing_receiver_is_tried_again_with_one_id_until_it_answers(
    stand: Stand, receiver: Receiver
) -> None:
    receiver.status = 500
    await stand.emit()
    for wait in WAITS[:3]:
        assert await stand.outbox.deliver() == 1
        assert await stand.outbox.deliver() == 0  # not before its time
        stand.clock.advance(wait.total_seconds())
    receiver.status = 204
    assert await stand.outbox.deliver() == 1
    [delivery] = await stand.deliveries()
    assert (delivery.attempts, delivery.last_answer) == (4, "204")
    assert delivery.delivered_at == stand.clock.now()
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


async def test_receiver_that_never_answers_is_given_up(stand: Stand, receiver: Receiver) -> None:
    receiver.status = 500
    await stand.emit()
    for wait in (*WAITS, timedelta(0)):
        assert await stand.outbox.deliver() == 1
        stand.clock.advance(wait.total_seconds())
    stand.clock.advance(timedelta(days=30).total_seconds())
    assert await stand.outbox.deliver() == 0
    assert len(receiver.got) == len(WAITS) + 1


async def test_redirect_is_not_followed(stand: Stand, receiver: Receiver) -> None:
    receiver.status = 302
    await stand.emit()
    await stand.outbox.deliver()
    [delivery] = await stand.deliveries()
    assert (delivery.last_answer, delivery.delivered_at) == ("302", None)


async def test_process_that_dies_while_posting_loses_nothing(
    stand: Stand, receiver: Receiver
) -> None:
    await stand.emit()
    await stand.outbox._claim()  # and then no more is heard of it
    assert await stand.outbox.deliver() == 0
    stand.clock.advance(LEASE.total_seconds())
    assert await stand.outbox.deliver() == 1


async def test_two_processes_post_each_event_once(stand: Stand, receiver: Receiver) -> None:
    for _ in range(20):
        await stand.emit()
    while sum(await asyncio.gather(*(stand.outbox.deliver() for _ in range(3)))):
        pass
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(ids) == len(set(ids)) == 20


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "0.0.0.0",
        "::1",
        "::ffff:127.0.0.1",
        "fe80::1",
        "fc00::1",
        "100.64.0.1",
        "224.0.0.1",
    ],
)
def test_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    with pytest.raises(Refused):
        Sender().post(
            "https://example.org/", b"", {}, resolve=lambda *_: ["93.184.216.34", address]
        )


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "ftp://example.org/",
        "https://user:pw@example.org/",
        "https:///path",
        "https://[::1",
    ],
)
async def test_strange_address_is_refused_when_it_is_set(
    stand: Stand, tmp_path: Path, url: str
) -> None:
    secrets = Secrets.load_or_create(tmp_path)
    strict = WebhookService(stand.database, secrets, Sender(), stand.clock)
    with pytest.raises(InvalidRequest):
        await strict.create(COMMAND_LINE, stand.tenant.id, url, ["*"])


async def test_secret_is_sealed_in_the_database(stand: Stand) -> None:
    content = await content_of(stand.database)
    assert "/hook?a=b" in content
    assert stand.made.secret.removeprefix("whsec_") not in content
