"""Every route of the admin API, asked by everybody: generated from the routes themselves."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from jsonschema_rs import Draft202012Validator
from sqlalchemy import func
from tests.admin_stand import PROJECT, AdminStand, admin_stand, untold
from tests.platform_stand import Seeded

from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.control.router import router
from loraplex_platform.db.database import Database
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.rest.route import PREFIX

Route = tuple[str, str]


def documented() -> dict[str, Any]:
    app = FastAPI()
    app.include_router(router)
    return app.openapi()


DOCUMENT = documented()
ROUTES: dict[Route, dict[str, Any]] = {  # as the OpenAPI document tells them
    (method.upper(), path.removeprefix(PREFIX)): operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
PERSON = {"email": "eve@example.org", "role": "tenant_viewer"}
STAFF = {"email": "eve@example.org", "role": "viewer"}


async def path_of(stand: AdminStand, template: str) -> str:
    """A path to an object of acme's that exists, made when the template needs one."""
    if "{key_id}" in template and template.startswith("/admin_keys"):
        body = {"role": "tenant_viewer", "tenant_id": stand.acme}
        made = await stand.made("/admin_keys", body)
        return template.replace("{key_id}", made["id"])
    makers: dict[str, Callable[[], Awaitable[dict[str, object]]]] = {
        "{key_id}": lambda: stand.made(PROJECT + "/keys", {}),
        "{account_id}": lambda: stand.made(PROJECT + "/service_accounts", {"name": "ci"}),
        "{plan_id}": lambda: stand.made("/plans", {"name": "gold"}),
        "{book_id}": lambda: stand.made("/price_books", BODIES["POST", "/price_books"]),
        "{grant_id}": lambda: stand.made(CREDITS, BODIES["POST", CREDITS]),
    }
    if "{person_id}" in template:
        of_tenant = template.startswith("/tenants")
        where = "/tenants/{tenant_id}/people" if of_tenant else "/people"
        person = (await stand.made(where, PERSON if of_tenant else STAFF))["person"]
        return stand.path(template.replace("{person_id}", person["id"]))
    for name, make in makers.items():
        if name in template:
            template = template.replace(name, str((await make())["id"]))
    if "{webhook_id}" in template:
        made = await stand.made("/tenants/{tenant_id}/webhooks", {"url": "https://example.org"})
        template = template.replace("{webhook_id}", made["webhook"]["id"])
    if "{invoice_id}" in template:
        if template.endswith("/credit"):  # something must be owed
            where = "/tenants/{tenant_id}/billing"
            assert (await stand.call("PUT", where, {"minimum_fee": "1"})).status_code == 200
        made = await stand.made("/tenants/{tenant_id}/invoices", {"month": "2020-01"})
        template = template.replace("{invoice_id}", made["id"])
    for name, value, body in SET:
        if name in template:
            template = template.replace(name, value)
            assert (await stand.call("PUT", template, body)).status_code == 200
    for name, value in (("{month}", "2020-01"), ("{kind}", "focus"), ("{format}", "csv")):
        template = template.replace(name, value)
    if template.endswith("/draft"):
        template += "?month=2020-01"
    if template.startswith("/usage/"):
        template += "?start_time=1577836800"
    if template.endswith("/resume"):
        assert (await stand.call("POST", "/tenants/{tenant_id}/suspend")).status_code == 200
    if template == PROJECT:  # the default project cannot be archived
        other = await stand.made("/tenants/{tenant_id}/projects", {"name": "web"})
        template = template.replace("{project_id}", other["id"])
    return stand.path(template)


SET = (  # what a tenant has of its own is there once it is set
    ("{span}", "month", {"amount": "1"}),
    ("{dimension}", "requests_per_minute", {"value": 4}),
)
BODIES: dict[Route, object] = {
    ("POST", "/tenants"): {"name": "initech"},
    ("PATCH", "/tenants/{tenant_id}"): {"weight": 2},
    ("POST", "/tenants/{tenant_id}/projects"): {"name": "mobile"},
    ("PATCH", PROJECT): {"name": "renamed"},
    ("POST", PROJECT + "/service_accounts"): {"name": "cd"},
    ("PATCH", PROJECT + "/service_accounts/{account_id}"): {"name": "cd"},
    ("POST", PROJECT + "/keys"): {"name": "k"},
    ("PATCH", PROJECT + "/keys/{key_id}"): {"name": "k"},
    ("POST", PROJECT + "/keys/{key_id}/rotate"): {},
    ("POST", "/admin_keys"): {"role": "tenant_viewer"},
    ("PATCH", "/admin_keys/{key_id}"): {"name": "k"},
    ("POST", "/people"): STAFF | {"email": "mallory@example.org"},
    ("PATCH", "/people/{person_id}"): {"name": "Eve"},
    ("POST", "/tenants/{tenant_id}/people"): PERSON | {"email": "mallory@example.org"},
    ("PATCH", "/tenants/{tenant_id}/people/{person_id}"): {"name": "Eve"},
}
for level in ("limits", "overrides"):
    BODIES["PUT", f"/tenants/{{tenant_id}}/{level}/{{dimension}}"] = {"value": 5}
WEBHOOK = "/tenants/{tenant_id}/webhooks/{webhook_id}"
BODIES["POST", "/tenants/{tenant_id}/webhooks"] = {"url": "https://example.org/hook"}
BODIES["PATCH", WEBHOOK] = {"is_active": False}
BODIES["PATCH", "/tenants/{tenant_id}/prompt_storage"] = {"stores_prompts": True}
KINDS = ("uncached_prompt", "cached_prompt", "completion")
BOOK = {
    "prices": [{"kind": kind, "usd_per_million": "0.3"} for kind in KINDS],
    "hosting_usd_per_gib_hour": "0.002",
}
BODIES["POST", "/price_books"] = {
    "effective_from": "2090-01-01T00:00:00Z",
    "content": BOOK,
    "tenant_id": None,
}
BODIES["PUT", "/tenants/{tenant_id}/billing"] = {"tax_percent": "19", "is_prepaid": True}
CREDITS = "/tenants/{tenant_id}/credits"
BODIES["POST", CREDITS] = {"key": "k", "amount": "5"}
BODIES["PUT", "/tenants/{tenant_id}/budgets/{span}"] = {"amount": "2", "is_hard": True}
BODIES["POST", "/tenants/{tenant_id}/invoices"] = {"month": "2020-02"}
BODIES["POST", "/tenants/{tenant_id}/invoices/{invoice_id}/credit"] = {"amount": "0.5"}
BODIES["POST", "/plans"] = {"name": "silver"}
BODIES["PATCH", "/plans/{plan_id}"] = {"weight": 2}
INVOICE = "/tenants/{tenant_id}/invoices/{invoice_id}"
BODILESS: set[Route] = {
    ("POST", INVOICE + "/pay"),
    ("POST", INVOICE + "/void"),
    ("POST", WEBHOOK + "/test"),
    ("POST", "/tenants/{tenant_id}/suspend"),
    ("POST", "/tenants/{tenant_id}/resume"),
    ("POST", "/people/{person_id}/reset"),
    ("POST", "/tenants/{tenant_id}/people/{person_id}/reset"),
}
# Who may not even try is told so, whether the tenant exists or not.
OTHER_TENANT: dict[Route, tuple[int, ...]] = {
    ("POST", "/tenants/{tenant_id}/people"): (403,),
}
LOGGED_READS: set[Route] = {("GET", "/tenants/{tenant_id}/export")}
STAFF_ONLY: set[Route] = {
    ("POST", "/tenants"),
    ("PATCH", "/tenants/{tenant_id}"),
    ("DELETE", "/tenants/{tenant_id}"),
    ("POST", "/tenants/{tenant_id}/suspend"),
    ("POST", "/tenants/{tenant_id}/resume"),
    ("PUT", "/tenants/{tenant_id}/billing"),
    ("POST", CREDITS),
    ("PUT", "/tenants/{tenant_id}/budgets/{span}"),
    ("DELETE", "/tenants/{tenant_id}/budgets/{span}"),
    ("POST", "/tenants/{tenant_id}/invoices"),
    ("POST", INVOICE + "/pay"),
    ("POST", INVOICE + "/void"),
    ("POST", INVOICE + "/credit"),
    *(r for r in ROUTES if r[1].startswith(("/people", "/plans", "/price_books", "/usage/"))),
    *(
        route
        for route in ROUTES
        if route[0] != "GET" and route[1].endswith("/{dimension}")  # their limits are not theirs
    ),
}


@pytest.fixture
async def stand(app: FastAPI, keys: Seeded) -> AsyncIterator[AdminStand]:
    async with admin_stand(app) as stand:
        yield stand


def body_of(route: Route, stand: AdminStand) -> object:
    body = BODIES.get(route)
    if route == ("POST", "/admin_keys"):
        return {"role": "tenant_viewer", "tenant_id": stand.acme}
    return body


def test_every_changing_route_has_its_line_here() -> None:
    needed = {route for route in ROUTES if route[0] in ("POST", "PATCH", "PUT")}
    assert needed == set(BODIES) | BODILESS


def test_every_body_here_is_as_the_document_says() -> None:
    for route, body in BODIES.items():
        schema = ROUTES[route]["requestBody"]["content"]["application/json"]["schema"]
        whole = schema | {"components": DOCUMENT["components"]}
        Draft202012Validator(whole).validate(body)


async def test_tenants_admin_need_not_name_its_tenant(stand: AdminStand) -> None:
    made = await stand.made("/admin_keys", BODIES["POST", "/admin_keys"], key="acme")
    assert made["tenant_id"] == stand.acme


def test_every_answer_says_what_it_holds() -> None:
    of_any_table = {"AuditOut.before", "AuditOut.after"}
    assert untold(DOCUMENT, ROUTES) == of_any_table


def test_every_route_says_how_it_may_fail_and_posts_take_an_idempotency_key() -> None:
    for (method, _), operation in ROUTES.items():
        assert {"400", "401", "403", "404", "429"} <= set(operation["responses"])
        headers = {p["name"] for p in operation.get("parameters", []) if p["in"] == "header"}
        assert ("idempotency-key" in headers) == (method == "POST")
        is_revised = method in ("PATCH", "PUT")
        assert ("if-match" in headers) == is_revised
        assert operation["security"] == [{"AdminKey": []}]


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
async def test_route_is_open_to_whom_it_should_be(
    stand: AdminStand, route: Route, app: FastAPI, keys: Seeded
) -> None:
    method, template = route
    path, body = await path_of(stand, template), body_of(route, stand)
    is_change, is_for_staff = method != "GET", route in STAFF_ONLY

    async def status(key: str) -> int:
        return (await stand.call(method, path, body, key=key)).status_code

    before = await num_events(app.state.database)
    assert await status("") == 401
    api_key = {"authorization": f"Bearer {keys.acme}"}
    answer = await stand.http.request(method, PREFIX + path, json=body, headers=api_key)
    assert answer.status_code == 401, "a tenant's API key opened the admin API"
    if is_change or route in LOGGED_READS:
        assert (await status("viewer"), await status("acme_viewer")) == (403, 403)
    if is_for_staff:
        assert (await status("acme"), await status("globex")) == (403, 403)
    elif "{" in template:
        assert await status("globex") in OTHER_TENANT.get(route, (404,))
    assert await num_events(app.state.database) == before, "a refused call changed something"

    assert 200 <= await status("owner" if is_for_staff else "acme") < 300
    changed = await num_events(app.state.database) - before
    leaves_trace = is_change or route in LOGGED_READS
    assert (changed > 0) == leaves_trace


async def num_events(database: Database) -> int:
    async with database.reading() as session:
        count = across_tenants(AuditEvent).with_only_columns(func.count(AuditEvent.id))
        return await session.scalar(count) or 0
