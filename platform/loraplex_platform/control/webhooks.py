"""`/tenants/{id}/webhooks`: where events are posted to, and what became of them."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Response
from pydantic import BaseModel, Field, StringConstraints

from loraplex_platform.control.schemas import Change, Id, Output
from loraplex_platform.control.services import Reader, Webhooks, WebhookWriter
from loraplex_platform.events.catalogue import EventType
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.json_schema import form
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.rest.route import Deleted, Once, Pages, Revision, admin_router, tag

router = admin_router()
WEBHOOKS = "/tenants/{tenant_id}/webhooks"
WEBHOOK = WEBHOOKS + "/{webhook_id}"
Url = Annotated[
    str,
    StringConstraints(max_length=2000, pattern=r"^https?://[\x21-\x7e]+$"),
    Field(json_schema_extra=form("https-address")),
]
Events = Annotated[
    list[EventType | Literal["*"]],
    Field(min_length=1, max_length=50),
]


class WebhookBody(Body):
    url: Url
    events: Events = Field(default=["*"])


class WebhookPatch(Change):
    url: Url | None = None
    events: Events | None = None
    is_active: bool | None = None

    @classmethod
    def required(cls) -> frozenset[str]:
        return frozenset({"url", "events", "is_active"})


class WebhookOut(Output):
    object: Literal["webhook"] = "webhook"
    tenant_id: str
    url: str
    events: list[str]
    is_active: bool
    created_at: datetime


class NewWebhookOut(BaseModel):
    """The secret signs what is posted (Standard Webhooks, v1); it is shown this once."""

    webhook: WebhookOut
    secret: str


class DeliveryOut(Output):
    object: Literal["webhook_delivery"] = "webhook_delivery"
    type: str
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    last_answer: str | None


@router.post(WEBHOOKS, status_code=201, dependencies=[Once])
async def create_webhook(
    tenant_id: Id, body: WebhookBody, by: WebhookWriter, webhooks: Webhooks
) -> NewWebhookOut:
    made = await webhooks.create(by, tenant_id, body.url, body.events)
    return NewWebhookOut(webhook=WebhookOut.model_validate(made.webhook), secret=made.secret)


@router.get(WEBHOOKS)
async def list_webhooks(
    tenant_id: Id, by: Reader, webhooks: Webhooks, pages: Pages
) -> Page[WebhookOut]:
    rows = await webhooks.page(by, tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([WebhookOut.model_validate(row) for row in rows], pages.limit)


@router.get(WEBHOOK)
async def get_webhook(
    tenant_id: Id, webhook_id: Id, by: Reader, webhooks: Webhooks, response: Response
) -> WebhookOut:
    webhook = await webhooks.find(by, tenant_id, webhook_id)
    tag(response, webhook)
    return WebhookOut.model_validate(webhook)


@router.patch(WEBHOOK)
async def change_webhook(
    tenant_id: Id,
    webhook_id: Id,
    body: WebhookPatch,
    by: WebhookWriter,
    webhooks: Webhooks,
    revision: Revision,
    response: Response,
) -> WebhookOut:
    webhook = await webhooks.change(by, tenant_id, webhook_id, body.given, revision=revision)
    tag(response, webhook)
    return WebhookOut.model_validate(webhook)


@router.delete(WEBHOOK)
async def remove_webhook(
    tenant_id: Id, webhook_id: Id, by: WebhookWriter, webhooks: Webhooks
) -> Deleted:
    await webhooks.remove(by, tenant_id, webhook_id)
    return Deleted(id=webhook_id)


@router.post(WEBHOOK + "/test", status_code=202, dependencies=[Once])
async def test_webhook(
    tenant_id: Id, webhook_id: Id, by: WebhookWriter, webhooks: Webhooks
) -> DeliveryOut:
    """Posts `webhook.test` to it; what became of it stands in its deliveries."""
    return DeliveryOut.model_validate(await webhooks.test(by, tenant_id, webhook_id))


@router.get(WEBHOOK + "/deliveries")
async def list_deliveries(
    tenant_id: Id, webhook_id: Id, by: Reader, webhooks: Webhooks, pages: Pages
) -> Page[DeliveryOut]:
    limit = pages.limit + 1
    rows = await webhooks.deliveries(by, tenant_id, webhook_id, after=pages.after, limit=limit)
    return page_of([DeliveryOut.model_validate(row) for row in rows], pages.limit)
