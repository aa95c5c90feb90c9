"""`/v1/adapters`: names lead to versions, and each change is audited."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.adapter_stand import (
    AdapterClient,
    base_folder,
    code_of,
    weights_of,
)
from tests.until import until

from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import CheckAdapter, DropAdapter, PinAdapter, PreloadAdapter
from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.auth.models import ApiKey
from loraplex_platform.auth.service import KeyService
from loraplex_platform.catalogue.routes import Route
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE


@pytest.fixture
def app(make_app: Callable[..., FastAPI], tmp_path: Path) -> FastAPI:
    return make_app(model=str(base_folder(tmp_path / "base")))


async def answered_by(engine: FakeEngine, client: AdapterClient, model: str, **body: object) -> str:
    """The version that an answer came from."""
    response = await client.ask(model, **body)
    assert response.status_code == 200, response.text
    version = engine.requests[-1].adapter
    assert version is not None
    return version


async def until_running(engine: FakeEngine) -> None:
    await until(lambda: engine.num_running > 0)


async def test_an_uploaded_adapter_answers_at_once_under_its_version(
    acme: AdapterClient, engine: FakeEngine
) -> None:
    made = await acme.upload("legal/eu:v1", sha256=hashlib.sha256(weights_of()).hexdigest())
    assert made.status_code == 201, made.text
    version = made.json()["versions"][0]
    assert (made.json()["current"], version["number"], version["rank"]) == (1, 1, 4)
    assert [m["scale"] for m in version["report"]["modules"]] == [2.0, 2.0]
    assert await answered_by(engine, acme, "legal/eu:v1") == version["sha256"]
    assert (await acme.call("GET", "/legal/eu:v1")).json() == made.json()


async def test_a_second_version_waits_until_the_name_points_at_it(
    acme: AdapterClient, engine: FakeEngine
) -> None:
    one = (await acme.upload("bot")).json()["versions"][0]["sha256"]
    made = (await acme.upload("bot", weights_of(1))).json()
    two = made["versions"][0]["sha256"]
    assert (made["current"], made["versions"][0]["number"]) == (1, 2)
    assert await answered_by(engine, acme, "bot") == one
    assert await answered_by(engine, acme, "bot@2") == two
    await acme.call("PATCH", "/bot", {"current": 2})
    assert await answered_by(engine, acme, "bot") == two
    back = (await acme.call("POST", "/bot/rollback")).json()
    assert (back["current"], back["previous"]) == (1, 2)
    assert await answered_by(engine, acme, "bot") == one


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("POST", "", None),
        ("GET", "/acme-only", None),
        ("PATCH", "/acme-only", {"enabled": False}),
        ("DELETE", "/acme-only", None),
        ("POST", "/acme-only/rollback", None),
        ("POST", "/acme-only/preload", None),
    ],
)
async def test_nobody_else_gets_at_an_adapter(
    acme: AdapterClient,
    globex: AdapterClient,
    app: FastAPI,
    method: str,
    path: str,
    body: object,
) -> None:
    nobody = AdapterClient(acme.http, "")
    assert code_of(await nobody.call(method, path, body)) == (401, "invalid_api_key")
    weak = await key_with(app, ["inference", "files"])
    denied = await AdapterClient(acme.http, weak).call(method, path, body)
    assert code_of(denied) == (403, "insufficient_permissions")
    if method != "GET":
        reader = AdapterClient(acme.http, await key_with(app, ["adapters:read"]))
        assert (await reader.call(method, path, body)).status_code == 403
    if path:
        assert code_of(await globex.call(method, path, body)) == (404, "unknown_name")
        assert (await acme.call("GET", "/acme-only")).json()["enabled"]
    elif method == "GET":
        listed = (await globex.call(method)).json()["data"]
        assert [each["id"] for each in listed] == ["support"]


async def key_with(app: FastAPI, scopes: list[str]) -> str:
    """A key of acme's that may do only this."""
    tenant = await app.state.tenants.get("acme")
    async with app.state.database.reading() as session:
        known = across_tenants(ApiKey).where(ApiKey.tenant_id == tenant.id)
        project_id = (await session.scalars(known)).first().project_id
    keys: KeyService = app.state.keys
    return str(await keys.create(tenant.id, project_id, scopes=scopes))


async def test_the_list_is_walked_page_by_page(acme: AdapterClient) -> None:
    for name in ("b", "a"):
        await acme.upload(name)
    first = (await acme.call("GET", "?limit=3")).json()
    assert ([x["id"] for x in first["data"]], first["has_more"]) == (["a", "acme-only", "b"], True)
    rest = (await acme.call("GET", f"?after={first['last_id']}")).json()
    assert ([x["id"] for x in rest["data"]], rest["has_more"]) == (["support"], False)


async def test_a_disabled_adapter_answers_nobody(acme: AdapterClient, app: FastAPI) -> None:
    await acme.call("PATCH", "/support", {"enabled": False})
    assert code_of(await acme.ask("support")) == (403, "model_disabled")
    assert code_of(await acme.ask("support@1")) == (403, "model_disabled")
    await acme.call("PATCH", "/support", {"enabled": True})
    assert (await acme.ask("support")).status_code == 200


async def test_a_stale_change_is_refused(acme: AdapterClient) -> None:
    tag = (await acme.call("GET", "/support")).headers["etag"]
    assert (await acme.call("PATCH", "/support", {"enabled": True}, if_match=tag)).is_success
    late = await acme.call("PATCH", "/support", {"enabled": False}, if_match=tag)
    assert code_of(late) == (412, "precondition_failed")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"current": 9}, 404, "name"),
        ({"canary": {"version": 9, "percent": 5}}, 404, "name"),
        ({"canary": {"version": 1, "percent": 101}}, 400, "canary.percent"),
        ({"current": None}, 400, "current"),
        ({"pinned": None}, 400, "pinned"),
        ({"defaults": {"temperature": 3}}, 400, "defaults.temperature"),
        ({"defaults": {"stop": [""]}}, 400, "defaults.stop.0"),
    ],
)
async def test_a_wrong_change_names_its_field(
    acme: AdapterClient, body: object, status: int, param: str
) -> None:
    answer = await acme.call("PATCH", "/support", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_a_canary_answers_its_share_of_callers_and_always_the_same(
    acme: AdapterClient, engine: FakeEngine
) -> None:
    one = (await acme.upload("bot")).json()["versions"][0]["sha256"]
    two = (await acme.upload("bot", weights_of(1))).json()["versions"][0]["sha256"]
    await acme.call("PATCH", "/bot", {"canary": {"version": 2, "percent": 50}})
    users = [f"user-{i}" for i in range(8)]
    first = [await answered_by(engine, acme, "bot", user=user) for user in users]
    again = [await answered_by(engine, acme, "bot", user=user) for user in users]
    assert first == again
    assert {one, two} == set(first)
    assert await answered_by(engine, acme, "bot@1", user=users[first.index(two)]) == one
    await acme.call("POST", "/bot/rollback")
    assert {await answered_by(engine, acme, "bot", user=user) for user in users} == {one}


def test_a_greater_share_takes_nobody_from_the_canary() -> None:
    callers = [f"user {i}" for i in range(2000)]
    before: set[str] = set()
    for percent in (0, 10, 50, 100):
        route = Route("stable", canary="canary", canary_percent=percent)
        chosen = {caller for caller in callers if route.version_for(caller) == "canary"}
        assert before <= chosen
        assert abs(len(chosen) / 20 - percent) < 4
        before = chosen


async def test_defaults_fill_what_a_request_leaves_out(
    acme: AdapterClient, engine: FakeEngine
) -> None:
    defaults = {"system_prompt": "Be brief.", "temperature": 0.25, "stop": "END", "max_tokens": 7}
    assert (await acme.call("PATCH", "/support", {"defaults": defaults})).is_success
    answer = await acme.ask("support", max_tokens=None)
    said = engine.requests[-1]
    assert (said.sampling.temperature, said.sampling.stop) == (0.25, ("END",))
    assert answer.json()["usage"]["completion_tokens"] <= 7
    assert said.sampling.max_tokens == 7
    await acme.ask("support", temperature=1.5, stop=["X"], max_completion_tokens=3, max_tokens=None)
    own = engine.requests[-1].sampling
    assert (own.temperature, own.stop, own.max_tokens) == (1.5, ("X",), 3)
    messages = [{"role": "system", "content": "Be long."}, {"role": "user", "content": "hi"}]
    await acme.ask("support", messages=messages)
    assert len(engine.requests[-1].prompt_ids) == len(said.prompt_ids) - 1  # one letter less


async def test_a_deleted_adapter_is_gone_and_its_running_requests_end_on_it(
    acme: AdapterClient, engine: FakeEngine
) -> None:
    made = (await acme.upload("bot")).json()["versions"][0]["sha256"]
    await acme.upload("same")
    engine.step_s = 0.01
    running = asyncio.create_task(acme.ask("bot", max_tokens=20))
    await until_running(engine)
    gone = await acme.http.delete("/v1/models/bot", headers={"authorization": f"Bearer {acme.key}"})
    assert gone.json() == {"id": "bot", "object": "model", "deleted": True}
    assert code_of(await acme.ask("bot")) == (404, "model_not_found")
    assert (await running).json()["usage"]["completion_tokens"] == 20
    assert not [c for c in engine.commands if isinstance(c, DropAdapter)]  # "same" still has it
    await acme.call("DELETE", "/same?drain_s=7.5")
    assert DropAdapter(made, 7.5) in engine.commands


async def test_only_a_version_that_nobody_needs_can_be_deleted(acme: AdapterClient) -> None:
    for seed in range(3):
        await acme.upload("bot", weights_of(seed))
    await acme.call("PATCH", "/bot", {"canary": {"version": 2, "percent": 1}})
    for number in (1, 2):
        answer = await acme.call("DELETE", f"/bot@{number}")
        assert code_of(answer) == (409, "version_in_use")
    assert (await acme.call("DELETE", "/bot@3")).is_success
    assert code_of(await acme.call("GET", "/bot@3")) == (404, "unknown_version")
    made = await acme.upload("bot", weights_of(9))
    assert made.json()["versions"][0]["number"] == 4, "a number is given once"


async def test_preload_reaches_the_engine_and_pins_survive_its_restart(
    acme: AdapterClient, engine: FakeEngine, app: FastAPI
) -> None:
    made = (await acme.upload("bot")).json()["versions"][0]["sha256"]
    tenant = (await app.state.tenants.get("acme")).id
    assert (await acme.call("POST", "/bot/preload")).status_code == 202
    assert engine.commands[-1] == PreloadAdapter(made, tenant)
    desk = app.state.adapters
    principal = await app.state.authenticator.authenticate(acme.key)
    await desk.catalogue.change(principal, "bot", {"pinned": True}, by=COMMAND_LINE.actor)
    await desk._residency.sync()
    engine.go_away()
    engine.come_back()
    await desk._residency.sync()
    await desk._residency.sync()
    pins = [c for c in engine.commands if isinstance(c, PinAdapter)]
    assert pins == [PinAdapter(made, tenant, pinned=True)] * 2
    await acme.call("DELETE", "/bot")
    await desk._residency.sync()
    assert engine.commands[-1] == PinAdapter(made, tenant, pinned=False)


async def test_what_a_command_took_away_the_engine_forgets_once(
    acme: AdapterClient, engine: FakeEngine, app: FastAPI
) -> None:
    made = (await acme.upload("bot")).json()["versions"][0]["sha256"]
    await acme.upload("same")
    desk = app.state.adapters
    principal = await app.state.authenticator.authenticate(acme.key)
    told = []
    for name in ("bot", "same"):
        await desk.catalogue.delete(principal, name, by=COMMAND_LINE.actor)
        for _ in range(2):
            await desk._residency.sync()
        told.append([c for c in engine.commands if isinstance(c, DropAdapter)])
    assert told == [[], [DropAdapter(made)]]  # as long as "same" has it, it stays


async def test_a_tenant_pins_as_many_as_it_may(acme: AdapterClient) -> None:
    for name in ("a", "b"):
        await acme.upload(name)
    assert (await acme.call("PATCH", "/a", {"pinned": True})).json()["pinned"] is True
    assert (await acme.call("PATCH", "/a", {"pinned": True})).is_success
    assert code_of(await acme.call("PATCH", "/b", {"pinned": True})) == (409, "too_many_pins")
    await acme.call("PATCH", "/a", {"pinned": False})
    assert (await acme.call("PATCH", "/b", {"pinned": True})).is_success


async def test_a_name_is_free_again_when_it_is_deleted(
    acme: AdapterClient, engine: FakeEngine
) -> None:
    await acme.upload("bot")
    await acme.call("DELETE", "/bot")
    made = await acme.upload("bot", weights_of(1))
    version = made.json()["versions"][0]
    assert (made.status_code, version["number"]) == (201, 1)
    assert await answered_by(engine, acme, "bot") == version["sha256"]
    assert code_of(await acme.ask("bot@2")) == (404, "model_not_found")


async def test_the_self_test_of_each_content_is_asked_for_once_and_shown(
    acme: AdapterClient, globex: AdapterClient, engine: FakeEngine, app: FastAPI
) -> None:
    made = (await acme.upload("bot")).json()["versions"][0]
    await globex.upload("theirs")  # the same content
    assert made["parity"] is None
    residency = app.state.adapters._residency
    for _ in range(3):
        await residency.sync()
    asked = [c.adapter for c in engine.commands if isinstance(c, CheckAdapter)]
    assert asked.count(made["sha256"]) == 1
    for client, name in ((acme, "bot"), (globex, "theirs")):
        [version] = (await client.call("GET", f"/{name}")).json()["versions"]
        assert version["parity"] == {
            "passed": True, "error": 0.0, "effect": 1.0, "seconds": 0.0, "reason": None,
            "host_bytes": None, "device_bytes": None,
        }  # fmt: skip


async def test_an_adapters_own_template_and_stop_tokens_hold(
    acme: AdapterClient, engine: FakeEngine
) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    defaults = {"chat_template": template, "stop_token_ids": [5, 6]}
    assert (await acme.call("PATCH", "/support", {"defaults": defaults})).is_success
    await acme.ask("support")
    said = engine.requests[-1]
    assert len(said.prompt_ids) == len("<user>hi")  # a letter is a token here
    assert said.sampling.stop_token_ids == (5, 6)
    await acme.ask("support", stop_token_ids=[7])
    assert engine.requests[-1].sampling.stop_token_ids == (7,)
    assert code_of(await acme.ask("support", stop_token_ids=[10**6])) == (400, "invalid_value")
    for broken in ("{% for %}", "{{ x | format }}"):
        answer = await acme.call("PATCH", "/support", {"defaults": {"chat_template": broken}})
        assert answer.status_code == 400
    hostile = {"chat_template": "{{ messages.__class__.__mro__ }}{{ 'a' * 9999999 }}"}
    await acme.call("PATCH", "/support", {"defaults": hostile})
    refused = await acme.ask("support")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


async def test_contents_that_nobody_has_named_for_a_day_are_swept(
    acme: AdapterClient, app: FastAPI
) -> None:
    kept = (await acme.upload("a")).json()["versions"][0]["sha256"]
    gone = (await acme.upload("b", weights_of(1))).json()["versions"][0]["sha256"]
    await acme.call("DELETE", "/b")
    catalogue = app.state.adapters.catalogue
    store = catalogue._store
    (store.root / ".incoming" / "dead").mkdir()
    now_s = SystemClock().now().timestamp()
    assert await catalogue.sweep(now_s + 3600) == 0
    assert set(store.versions()) == {kept, gone}
    assert await catalogue.sweep(now_s + 25 * 3600) == 1
    assert list(store.versions()) == [kept]
    assert list((store.root / ".incoming").iterdir()) == []


async def test_every_change_is_in_the_audit_log_with_its_key(
    acme: AdapterClient, app: FastAPI
) -> None:
    await acme.upload("bot")
    await acme.call("PATCH", "/bot", {"enabled": False})
    await acme.call("DELETE", "/bot")
    async with app.state.database.reading() as session:
        statement = across_tenants(AuditEvent).where(AuditEvent.object_id.endswith("/bot"))
        events = list(await session.scalars(statement.order_by(AuditEvent.id)))
    verbs = ["created", "updated", "deleted"]
    assert [e.action for e in events] == [f"adapter_name.{verb}" for verb in verbs]
    assert {e.actor_kind for e in events} == {"key"}
    assert events[1].after is not None
    assert events[1].after["is_enabled"] is False
