"""Webhooks: where a tenant's events go, what became of each, tried and sent again."""

import re

from starlette.responses import Response

from loraplex_admin.visit import SHOWN, Change, Page, Visit
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.models import Webhook

ALL = "/tenants/{tenant_id}/webhooks"
ONE = ALL + "/{webhook_id}"
EVENT = re.compile(r"\*|[a-z_.]{1,64}")


async def show_everywhere(visit: Visit) -> Response:
    services, by = visit.services, visit.by
    rows = await services.webhooks.page(by, None, **visit.cut)
    return visit.render(
        "webhooks_everywhere.html",
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
        tenants=await services.tenants.names(by, {row.tenant_id for row in rows}),
    )


async def show_all(visit: Visit) -> Response:
    services, by, tenant_id = visit.services, visit.by, visit.place("tenant_id")
    rows = await services.webhooks.page(by, tenant_id, **visit.cut)
    return visit.render(
        "webhooks.html",
        tenant=await services.tenants.find(by, tenant_id),
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
    )


async def create(visit: Visit) -> Response:
    """The only page that shows what its posts are signed with."""
    tenant_id, url = visit.place("tenant_id"), visit.text("url")
    await visit.services.tenants.find(visit.by, tenant_id)
    if len(url) > 2000 or not re.fullmatch(r"https?://[\x21-\x7e]+", url):
        raise InvalidRequest("An address begins with https:// and has no spaces.", param="url")
    made = await visit.services.webhooks.create(visit.by, tenant_id, url, _events(visit))
    back = f"/tenants/{tenant_id}/webhooks/{made.webhook.id}"
    title = "The webhook's signing secret"
    return visit.render("secret.html", title=title, secret=made.secret, back=back)


async def show(visit: Visit) -> Response:
    services, by, webhook = visit.services, visit.by, await _webhook(visit)
    rows = await services.webhooks.log(
        by, webhook.tenant_id, webhook.id, before=visit.wanted("after"), limit=SHOWN + 1
    )
    return visit.render(
        "webhook.html",
        tenant=await services.tenants.find(by, webhook.tenant_id),
        webhook=webhook,
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
    )


async def change(visit: Visit) -> Response:
    """Switch off, on, or remove."""
    services, by, webhook = visit.services, visit.by, await _webhook(visit)
    action, back = visit.text("action"), _path_of(webhook)
    verbs = {"off": "Switch off", "on": "Switch on", "remove": "Remove"}
    if action not in verbs:
        raise InvalidRequest("action must be on, off or remove", param="action")
    if not visit.is_confirmed:
        after = {"off": "nothing is posted", "on": "events are posted", "remove": "removed"}
        before = "events are posted" if webhook.is_active else "nothing is posted"
        note = (
            "What it has not been told yet, it is not told any more." if action == "remove" else ""
        )
        changes = [Change(webhook.url, before, after[action])]
        title = f"{verbs[action]} this webhook?"
        return visit.confirm(title, changes, verbs[action], note=note, back=back)
    if action == "remove":
        await services.webhooks.remove(by, webhook.tenant_id, webhook.id)
        return visit.goto(f"/tenants/{webhook.tenant_id}/webhooks", done="removed")
    values = {"is_active": action == "on"}
    await services.webhooks.change(by, webhook.tenant_id, webhook.id, values)
    return visit.goto(back, done="changed")


async def test(visit: Visit) -> Response:
    webhook = await _webhook(visit)
    await visit.services.webhooks.test(visit.by, webhook.tenant_id, webhook.id)
    return visit.goto(_path_of(webhook), done="sent")


async def replay(visit: Visit) -> Response:
    webhook, delivery_id = await _webhook(visit), visit.place("delivery_id")
    await visit.services.webhooks.replay(visit.by, webhook.tenant_id, webhook.id, delivery_id)
    return visit.goto(_path_of(webhook), done="sent")


def _events(visit: Visit) -> list[str]:
    events = [part for part in re.split(r"[\s,]+", visit.text("events")) if part] or ["*"]
    if len(events) > 50 or not all(EVENT.fullmatch(event) for event in events):
        raise InvalidRequest("Events look like batch.completed; * is all of them.", param="events")
    return events


async def _webhook(visit: Visit) -> Webhook:
    return await visit.services.webhooks.find(
        visit.by, visit.place("tenant_id"), visit.place("webhook_id")
    )


def _path_of(webhook: Webhook) -> str:
    return f"/tenants/{webhook.tenant_id}/webhooks/{webhook.id}"


PAGES = (
    Page("GET", "/settings/webhooks", show_everywhere, is_staff=True),
    Page("GET", ALL, show_all),
    Page("POST", ALL, create, "webhooks"),
    Page("GET", ONE, show),
    Page("POST", ONE, change, "webhooks"),
    Page("POST", ONE + "/test", test, "webhooks"),
    Page("POST", ONE + "/deliveries/{delivery_id}/replay", replay, "webhooks"),
)
