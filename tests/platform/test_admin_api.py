"""The admin API: objects live their lives, repeats change nothing, stale changes are refused."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from tests.admin_stand import PROJECT, AdminStand, admin_stand
from tests.platform_stand import Seeded, engine_of


@pytest.fixture
async def stand(app: FastAPI, keys: Seeded) -> AsyncIterator[AdminStand]:
    async with admin_stand(app) as stand:
        yield stand


async def test_tenant_is_made_read_changed_suspended_and_closed(stand: AdminStand) -> None:
    made = await stand.made("/tenants", {"name": "initech", "weight": 3})
    path = f"/tenants/{made['id']}"
    assert (await stand.call("GET", path)).json() == made
    changed = await stand.call("PATCH", path, {"weight": None, "allowed_regions": ["eu"]})
    assert changed.json() == made | {"weight": None, "allowed_regions": ["eu"]}
    states = [
        (await stand.call("POST", f"{path}/suspend")).json()["state"],
        (await stand.call("POST", f"{path}/resume")).json()["state"],
        (await stand.call("DELETE", path)).json()["state"],
    ]
    assert states == ["suspended", "active", "closing"]


async def test_key_is_shown_once_and_works(stand: AdminStand) -> None:
    made = await stand.made(PROJECT + "/keys", {"name": "ci", "scopes": ["inference"]})
    listed = (await stand.call("GET", PROJECT + "/keys")).json()["data"]
    assert made["value"] not in str(listed)
    models = await stand.http.get(
        "/v1/models", headers={"authorization": f"Bearer {made['value']}"}
    )
    assert models.status_code == 200


async def test_admin_key_does_no_inference(stand: AdminStand) -> None:
    headers = {"authorization": f"Bearer {stand.keys['owner']}"}
    assert (await stand.http.get("/v1/models", headers=headers)).status_code == 401


async def test_lists_are_walked_page_by_page(stand: AdminStand) -> None:
    made = [
        (await stand.made("/tenants/{tenant_id}/projects", {"name": f"p{i}"}))["id"]
        for i in range(5)
    ]
    seen: list[str] = []
    after = ""
    while True:
        page = (await stand.call("GET", f"/tenants/{{tenant_id}}/projects?limit=2{after}")).json()
        assert len(page["data"]) <= 2
        seen += [project["id"] for project in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert sorted(seen) == sorted([stand.project, *made])
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "after=%00", "after='"])
async def test_strange_pages_are_refused(stand: AdminStand, query: str) -> None:
    assert (await stand.call("GET", f"/tenants?{query}")).status_code == 400


async def test_change_of_a_stale_revision_is_refused(stand: AdminStand) -> None:
    path = "/tenants/{tenant_id}"
    tag = (await stand.call("GET", path)).headers["etag"]
    first = await stand.call("PATCH", path, {"weight": 2}, if_match=tag)
    second = await stand.call("PATCH", path, {"weight": 3}, if_match=tag)
    assert (first.status_code, second.status_code) == (200, 412)
    assert second.json()["error"]["code"] == "precondition_failed"
    again = await stand.call("PATCH", path, {"weight": 3}, if_match=first.headers["etag"])
    assert again.status_code == 200


async def test_ten_changes_of_one_revision_change_it_once(stand: AdminStand) -> None:
    path = "/tenants/{tenant_id}"
    tag = (await stand.call("GET", path)).headers["etag"]
    answers = await asyncio.gather(
        *(stand.call("PATCH", path, {"weight": i}, if_match=tag) for i in range(1, 11))
    )
    assert sorted(a.status_code for a in answers) == [200] + [412] * 9


async def test_repeated_creation_answers_the_same_key(stand: AdminStand) -> None:
    path, body = PROJECT + "/keys", {"name": "ci"}
    first = await stand.call("POST", path, body, idempotency_key="a")
    second = await stand.call("POST", path, body, idempotency_key="a")
    assert first.json() == second.json()
    assert (first.status_code, first.headers["etag"]) == (
        second.status_code,
        second.headers["etag"],
    )
    assert second.headers["idempotent-replayed"] == "true"
    other = await stand.call("POST", path, body, idempotency_key="b")
    assert other.json()["id"] != first.json()["id"]


async def test_idempotency_key_with_another_body_is_a_mistake(stand: AdminStand) -> None:
    path = PROJECT + "/keys"
    await stand.call("POST", path, {"name": "ci"}, idempotency_key="a")
    answer = await stand.call("POST", path, {"name": "cd"}, idempotency_key="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "idempotency_key_reused")


async def test_idempotency_keys_of_two_callers_do_not_meet(stand: AdminStand) -> None:
    path, body = "/tenants/{tenant_id}/projects", {"name": "web"}
    made = await stand.call("POST", path, body, idempotency_key="a")
    other = await stand.call("POST", path, body, key="acme", idempotency_key="a")
    assert (made.status_code, other.status_code) == (201, 409)


async def test_failed_request_frees_its_idempotency_key(stand: AdminStand) -> None:
    path = "/tenants/{tenant_id}/projects"
    await stand.made(path, {"name": "web"})
    for _ in range(2):
        answer = await stand.call("POST", path, {"name": "web"}, idempotency_key="a")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] is None


async def test_ten_requests_at_once_with_one_idempotency_key_make_one_project(
    stand: AdminStand,
) -> None:
    path, body = "/tenants/{tenant_id}/projects", {"name": "web"}
    answers = await asyncio.gather(
        *(stand.call("POST", path, body, idempotency_key="a") for _ in range(10))
    )
    made = {a.json()["id"] for a in answers if a.status_code == 201}
    assert len(made) == 1
    late = [a for a in answers if a.status_code != 201]
    assert {a.json()["error"]["code"] for a in late} <= {"idempotency_in_flight"}
    assert all(a.headers["retry-after"] == "1" for a in late)


async def test_stored_answer_holds_no_key_in_the_clear(stand: AdminStand, app: FastAPI) -> None:
    made = await stand.call("POST", PROJECT + "/keys", {}, idempotency_key="a")
    secret = made.json()["value"].rpartition("_")[2]
    engine = engine_of(app.state.database.url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM idempotent_request")).all()
    engine.dispose()
    assert len(rows) == 1
    assert secret not in str(rows)


async def test_audit_log_is_shown_filtered_and_exported(stand: AdminStand) -> None:
    await stand.call("PATCH", "/tenants/{tenant_id}", {"weight": 2})
    query = f"/audit_events?object_type=tenant&object_id={stand.acme}"
    [changed, *_] = (await stand.call("GET", query)).json()["data"]
    assert (changed["action"], changed["actor_kind"]) == ("tenant.updated", "admin_key")
    assert (changed["before"], changed["after"]) == ({"weight": None}, {"weight": 2.0})
    exported = (await stand.call("GET", "/audit_events/export")).text
    assert changed["id"] in exported
    assert stand.globex not in (await stand.call("GET", "/audit_events/export", key="acme")).text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tenants", {"name": "A B"}),
        ("/tenants", {"name": "x", "extra": 1}),
        ("/tenants", {"name": "x", "weight": 0}),
        ("/tenants", {"name": "x", "allowed_networks": ["10.0.0.1/8"]}),
        ("/tenants", {"name": "x", "plan_id": "none"}),
        (PROJECT + "/keys", {"scopes": ["root"]}),
        (PROJECT + "/keys", {"name": "a\u0000b"}),
        (PROJECT + "/keys", {"expires_at": "2026-01-01T00:00:00"}),
        ("/people", {"email": "x", "role": "owner"}),
        *(
            ("/people", {"email": f"x@y{space}z", "role": "owner"})
            for space in "\x1c\x85\u2028\ufeff"
        ),
        ("/people", {"email": "x@y", "role": "tenant_admin"}),
    ],
)
async def test_wrong_values_are_refused(stand: AdminStand, path: str, body: object) -> None:
    answer = await stand.call("POST", path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


async def test_name_that_is_taken_is_a_conflict(stand: AdminStand) -> None:
    project = await stand.made("/tenants/{tenant_id}/projects", {"name": "web"})
    await stand.made("/plans", {"name": "gold"})
    silver = await stand.made("/plans", {"name": "silver"})
    paths = {
        "/tenants/{tenant_id}": "globex",
        f"/tenants/{{tenant_id}}/projects/{project['id']}": "default",
        f"/plans/{silver['id']}": "gold",
    }
    answers = [await stand.call("PATCH", path, {"name": name}) for path, name in paths.items()]
    assert [answer.status_code for answer in answers] == [409] * 3


async def test_null_does_not_clear_what_must_be(stand: AdminStand) -> None:
    answer = await stand.call("PATCH", PROJECT, {"name": None})
    assert answer.status_code == 400


async def test_tenant_admin_cannot_give_a_staff_role(stand: AdminStand) -> None:
    for body in ({"role": "owner"}, {"role": "tenant_admin", "tenant_id": stand.globex}):
        answer = await stand.call("POST", "/admin_keys", body, key="acme")
        assert answer.status_code in (400, 403)


async def test_limit_raised_for_a_day_is_shown_with_its_source(stand: AdminStand) -> None:
    plan = await stand.made("/plans", {"name": "gold", "limits": {"tokens_per_minute": 1000}})
    await stand.call("PATCH", "/tenants/{tenant_id}", {"plan_id": plan["id"]})
    await stand.call("PUT", "/tenants/{tenant_id}/limits/requests_per_minute", {"value": 10})
    until = "2999-01-01T00:00:00Z"
    body = {"value": 99, "expires_at": until, "reason": "launch"}
    await stand.call("PUT", "/tenants/{tenant_id}/overrides/requests_per_minute", body)
    shown = (await stand.call("GET", "/tenants/{tenant_id}/effective")).json()["limits"]
    assert [(e["dimension"], e["value"], e["source"], e["until"]) for e in shown] == [
        ("tokens_per_minute", 1000, "plan", None),
        ("requests_per_minute", 99, "override", until),
    ]


async def test_limit_of_another_tenants_key_is_not_found(stand: AdminStand) -> None:
    key = await stand.made(PROJECT + "/keys", {})
    path = f"/tenants/{stand.globex}/limits/requests_per_minute?key_id={key['id']}"
    assert (await stand.call("PUT", path, {"value": 1})).status_code == 404
