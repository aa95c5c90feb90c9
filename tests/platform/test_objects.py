"""Every object of the admin API lives its whole life, and every route keeps the same promises."""

import hashlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import FastAPI
from tests.admin_stand import PROJECT, AdminStand, admin_stand, lists_without_pages
from tests.platform.test_admin_matrix import BOOK, ROUTES, STAFF_ONLY, Route, body_of, path_of
from tests.platform_stand import Seeded

from loraplex_platform.admission.limits import DIMENSIONS
from loraplex_platform.admission.models import LimitRule
from loraplex_platform.kit.ids import new_id
from loraplex_platform.rest.idempotency import Claim, Idempotency
from loraplex_platform.rest.route import PREFIX


@dataclass(frozen=True)
class Kind:
    """How objects of one kind are made and changed."""

    path: str  # of the collection
    body: dict[str, Any]  # «{n}» in its values is another number for each object
    change: dict[str, Any] = field(default_factory=dict)
    inside: str = ""  # where the answer to its creation has the object
    gone: str = ""  # the field that tells, where deleted ones stay to be seen

    def new(self, n: int) -> dict[str, Any]:
        return {k: v.format(n=n) if isinstance(v, str) else v for k, v in self.body.items()}


KINDS = {
    "tenant": Kind("/tenants", {"name": "t{n}"}, {"weight": 2.0}, gone="state"),
    "project": Kind(
        "/tenants/{tenant_id}/projects",
        {"name": "p{n}"},
        {"allowed_models": ["support"]},
        gone="archived_at",
    ),
    "service account": Kind(PROJECT + "/service_accounts", {"name": "a{n}"}, {"name": "renamed"}),
    "key": Kind(PROJECT + "/keys", {"name": "k{n}"}, {"scopes": ["inference"]}, gone="revoked_at"),
    "admin key": Kind(
        "/admin_keys", {"role": "viewer", "name": "k{n}"}, {"name": "z"}, gone="revoked_at"
    ),
    "operator": Kind(
        "/people", {"email": "{n}@b", "role": "viewer"}, {"name": "Ada"}, inside="person"
    ),
    "member": Kind(
        "/tenants/{tenant_id}/people",
        {"email": "m{n}@b", "role": "tenant_viewer"},
        {"name": "Ada"},
        inside="person",
    ),
    "plan": Kind("/plans", {"name": "plan{n}"}, {"weight": 3.0}),
    "webhook": Kind(
        "/tenants/{tenant_id}/webhooks",
        {"url": "https://example.org/{n}"},
        {"is_active": False},
        inside="webhook",
    ),
}

FINAL = {  # made, and never changed or deleted
    "price book": Kind(
        "/price_books",
        {"effective_from": "209{n}-01-01T00:00:00Z", "content": BOOK, "tenant_id": None},
    ),
    "credit": Kind("/tenants/{tenant_id}/credits", {"key": "k{n}", "amount": "5"}),
    "invoice": Kind("/tenants/{tenant_id}/invoices", {"month": "202{n}-01"}),
}
WHOLE = {  # one object, or a report that has pages of its own
    "/audit_events/export",
    "/tenants/{tenant_id}/billing",
    "/tenants/{tenant_id}/effective",
    "/tenants/{tenant_id}/export",
    "/tenants/{tenant_id}/exports/{month}/{kind}.{format}.manifest.json",
    "/tenants/{tenant_id}/invoices/draft",
    "/usage/completions",
    "/usage/costs",
}


@pytest.fixture
async def stand(app: FastAPI, keys: Seeded) -> AsyncIterator[AdminStand]:
    async with admin_stand(app) as stand:
        yield stand


def test_every_collection_has_its_kind_here() -> None:
    lists = {path for method, path in ROUTES if method == "GET" and ("POST", path) in ROUTES}
    assert lists == {kind.path for kind in (*KINDS.values(), *FINAL.values())}


def test_every_list_comes_in_pages() -> None:
    assert lists_without_pages(ROUTES) == WHOLE


async def walked(stand: AdminStand, path: str) -> list[str]:
    """Ids of a whole list, a page of two at a time."""
    seen: list[str] = []
    after = ""
    while True:
        page = (await stand.call("GET", f"{path}?limit=2{after}")).json()
        assert len(page["data"]) <= 2
        seen += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            return seen
        after = f"&after={page['last_id']}"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_object_is_made_read_listed_changed_and_deleted(
    stand: AdminStand, kind: Kind
) -> None:
    before = await walked(stand, kind.path)
    made = [await stand.made(kind.path, kind.new(n)) for n in range(5)]
    ids = [(each[kind.inside] if kind.inside else each)["id"] for each in made]
    assert sorted(await walked(stand, kind.path)) == sorted([*before, *ids])
    one = f"{kind.path}/{ids[0]}"
    read = await stand.call("GET", one)
    assert read.json()["id"] == ids[0]
    changed = await stand.call("PATCH", one, kind.change, if_match=read.headers["etag"])
    assert changed.status_code == 200, changed.text
    expected = read.json() | kind.change
    assert (await stand.call("GET", one)).json() == expected == changed.json()
    stale = await stand.call("PATCH", one, kind.change, if_match=read.headers["etag"])
    assert stale.status_code == 412
    await _deleted(stand, kind, one, ids[0])


async def _deleted(stand: AdminStand, kind: Kind, one: str, id: str) -> None:
    answer = await stand.call("DELETE", one)
    assert answer.status_code in (200, 202)
    if kind.gone:
        was = {"state": "active"}.get(kind.gone)
        assert (await stand.call("GET", one)).json()[kind.gone] != was
        return
    assert (await stand.call("GET", one)).status_code == 404
    assert id not in await walked(stand, kind.path)


@pytest.mark.parametrize("kind", FINAL.values(), ids=FINAL)
async def test_object_is_made_read_and_listed_for_ever(stand: AdminStand, kind: Kind) -> None:
    before = await walked(stand, kind.path)
    made = [await stand.made(kind.path, kind.new(n)) for n in range(5)]
    assert sorted(await walked(stand, kind.path)) == sorted([*before, *(m["id"] for m in made)])
    one = await stand.call("GET", f"{kind.path}/{made[0]['id']}")
    assert one.status_code == 200
    shared = one.json().keys() & made[0].keys() - {"due_at"}  # a document says it in words
    told = {name: made[0][name] for name in shared}
    assert len(told) > 3
    assert one.json() | told == one.json()
    for method in ("PATCH", "PUT", "DELETE"):
        assert (await stand.call(method, f"{kind.path}/{made[0]['id']}", {})).status_code == 405


SETTINGS = {  # set and changed alike: each at a place of its own, below what it binds
    "limit": ("/tenants/{tenant_id}/limits", "tokens_per_day", {"value": 5}, {"value": 6}),
    "override": (
        "/tenants/{tenant_id}/overrides",
        "tokens_per_day",
        {"value": 5, "reason": "launch"},
        {"value": 6, "reason": "it went well"},
    ),
    "budget": ("/tenants/{tenant_id}/budgets", "day", {"amount": "5.0"}, {"amount": "6.0"}),
}


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_id_of_a_limit_is_short_enough_to_go_on_from(dimension: str) -> None:
    longest = LimitRule(subject=new_id("proj"), dimension=dimension).id
    assert re.fullmatch("[A-Za-z0-9_]{1,64}", longest)


@pytest.mark.parametrize(("path", "name", "body", "change"), SETTINGS.values(), ids=SETTINGS)
async def test_setting_is_made_read_listed_changed_and_deleted(
    stand: AdminStand, path: str, name: str, body: dict[str, Any], change: dict[str, Any]
) -> None:
    keys = [(await stand.made(PROJECT + "/keys", {}))["id"] for _ in range(3)]
    queries = ("", f"?project_id={stand.project}", *(f"?key_id={key}" for key in keys))
    places = [f"{path}/{name}{query}" for query in queries]
    absent = await stand.call("PUT", places[0], body, if_match='"7"')
    assert absent.status_code == 412, "nothing was there to have been read"
    made = [(await stand.call("PUT", place, body)).json() for place in places]
    assert [each["subject"] for each in made] == [stand.acme, stand.project, *keys]
    assert sorted(await walked(stand, path)) == sorted(each["id"] for each in made)
    read = await stand.call("GET", places[0])
    assert read.json() == made[0]
    changed = await stand.call("PUT", places[0], change, if_match=read.headers["etag"])
    assert changed.json().items() >= {"id": made[0]["id"], **change}.items()
    again = await stand.call("GET", places[0])
    assert (again.json(), again.headers["etag"]) == (changed.json(), changed.headers["etag"])
    assert (await stand.call("GET", places[1])).json() == made[1]
    for status, etag in ((412, read.headers["etag"]), (200, again.headers["etag"])):
        answer = await stand.call("PUT", places[0], body, if_match=etag)
        assert answer.status_code == status
    assert (await stand.call("DELETE", places[0])).json() == {"id": made[0]["id"], "deleted": True}
    for method in ("GET", "DELETE"):
        assert (await stand.call(method, places[0])).status_code == 404
    assert sorted(await walked(stand, path)) == sorted(each["id"] for each in made[1:])


async def test_keys_of_a_service_account_end_with_it(stand: AdminStand) -> None:
    account = (await stand.made(PROJECT + "/service_accounts", {"name": "ci"}))["id"]
    made = await stand.made(PROJECT + "/keys", {"service_account_id": account})
    auth = {"authorization": f"Bearer {made['value']}"}
    assert (await stand.http.get("/v1/models", headers=auth)).status_code == 200
    deleted = await stand.call("DELETE", f"{PROJECT}/service_accounts/{account}")
    assert deleted.json() == {"id": account, "deleted": True}
    key = (await stand.call("GET", f"{PROJECT}/keys/{made['id']}")).json()
    assert (key["service_account_id"], key["revoked_at"] is None) == (None, False)
    assert (await stand.http.get("/v1/models", headers=auth)).status_code == 401


POSTS = [route for route in ROUTES if route[0] == "POST"]


def key_for(route: Route) -> str:
    return "owner" if route in STAFF_ONLY else "acme"


@pytest.mark.parametrize("route", POSTS, ids=" ".join)
async def test_repeated_post_is_answered_as_the_first_time(stand: AdminStand, route: Route) -> None:
    path, body, key = await path_of(stand, route[1]), body_of(route, stand), key_for(route)
    first = await stand.call("POST", path, body, key=key, idempotency_key="once")
    again = await stand.call("POST", path, body, key=key, idempotency_key="once")
    assert first.status_code < 300, first.text
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    other = await stand.call("POST", path + "?x=1", body, key=key, idempotency_key="once")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("route", POSTS, ids=" ".join)
async def test_post_whose_twin_still_runs_is_told_to_wait(
    stand: AdminStand, app: FastAPI, route: Route
) -> None:
    path, body, key = await path_of(stand, route[1]), body_of(route, stand), key_for(route)
    content = b"" if body is None else json.dumps(body).encode()
    caller = stand.keys[key].split("_")[1]
    fingerprint = hashlib.sha256(b"\n" + content).hexdigest()
    idempotency: Idempotency = app.state.idempotency
    assert await idempotency.begin(Claim(caller, f"POST {PREFIX}{path}", "k", fingerprint)) is None
    answer = await stand.http.post(
        PREFIX + path,
        content=content,
        headers={
            "authorization": f"Bearer {stand.keys[key]}",
            "idempotency-key": "k",
            "content-type": "application/json",
        },
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_in_flight")
    assert answer.headers["retry-after"] == "1"


CHANGES = [route for route in ROUTES if route[0] in ("PATCH", "PUT")]


@pytest.mark.parametrize("route", CHANGES, ids=" ".join)
async def test_change_of_a_stale_object_is_refused(stand: AdminStand, route: Route) -> None:
    path, body = await path_of(stand, route[1]), body_of(route, stand)
    key = "acme" if route not in STAFF_ONLY else "owner"
    first = await stand.call(route[0], path, body, key=key)
    tag = first.headers["etag"]
    number = int(tag.strip('"'))
    for given, status in ((number - 1, 412), (number + 1, 412), ("nonsense", 400)):
        tagged = f'"{given}"' if isinstance(given, int) else given
        answer = await stand.call(route[0], path, body, key=key, if_match=tagged)
        assert answer.status_code == status, tagged
    assert (await stand.call(route[0], path, body, key=key, if_match=tag)).status_code == 200
