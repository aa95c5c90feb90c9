"""Every route that changes something leaves one line in the audit log for each object it changed."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from tests.adapter_stand import CONFIG_BYTES, base_folder, weights_of
from tests.admin_stand import AdminStand, admin_stand
from tests.platform.batch_stand import URL, jsonl, line
from tests.platform.test_admin_matrix import (
    ROUTES,
    Route,
    body_of,
    path_of,
)
from tests.platform_stand import BASE, Seeded

from loraplex_platform.app import ROUTERS
from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.auth.keys import parse_key
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.rest.route import PREFIX

CHANGING = [route for route in ROUTES if route[0] != "GET"]
# How many objects a call changes, where that is not one.
OBJECTS: dict[Route, list[str]] = {
    ("POST", "/tenants"): ["project", "tenant"],
    ("POST", "/tenants/{tenant_id}/invoices/{invoice_id}/void"): [
        "invoice",
        "invoice",
    ],  # and its credit note
    ("POST", "/people"): ["one_time_link", "person"],
    ("POST", "/tenants/{tenant_id}/people"): ["one_time_link", "person"],
    ("DELETE", "/people/{person_id}"): ["one_time_link", "person"],
    ("DELETE", "/tenants/{tenant_id}/people/{person_id}"): ["one_time_link", "person"],
}
TENANTS_OWN: set[Route] = {("PATCH", "/tenants/{tenant_id}/prompt_storage")}
CHANGES_NOTHING: set[Route] = {
    ("POST", "/v1/chat/completions"),  # a usage event tells of it
    ("POST", "/v1/completions"),
}


@pytest.fixture
def app(make_app: Callable[..., FastAPI], tmp_path: Path) -> FastAPI:
    folders = (str(tmp_path / "adapters"),)
    return make_app(model=str(base_folder(tmp_path / "base")), adapter_folders=folders)


@pytest.fixture
async def stand(app: FastAPI, keys: Seeded) -> AsyncIterator[AdminStand]:
    async with admin_stand(app) as stand:
        yield stand


async def events_of(app: FastAPI, response: httpx2.Response) -> list[AuditEvent]:
    """What the log says of one request."""
    async with app.state.database.reading() as session:
        statement = across_tenants(AuditEvent).where(
            AuditEvent.request_id == response.headers["x-request-id"]
        )
        return list(await session.scalars(statement))


def secrets_in(answer: Any) -> list[str]:
    """What an answer shows this once."""
    given = [answer.get(name) for name in ("value", "token", "secret")]
    shown = [text for text in given if isinstance(text, str)]  # a limit has a value too
    keys = [parse_key(text, kind) for text in shown for kind in ("lpx", "lpxadmin")]
    return shown + [key.secret for key in keys if key is not None]


@pytest.mark.parametrize("route", CHANGING, ids=" ".join)
async def test_change_through_the_admin_api_is_logged_once(
    stand: AdminStand, app: FastAPI, route: Route
) -> None:
    method, template = route
    path = await path_of(stand, template)
    key = "acme" if route in TENANTS_OWN else "owner"
    response = await stand.call(method, path, body_of(route, stand), key=key)
    assert response.status_code < 300, response.text
    events = await events_of(app, response)
    expected = OBJECTS.get(route)
    assert sorted(event.object_type for event in events) == (expected or [events[0].object_type])
    assert {(event.actor_kind, event.actor_name) for event in events} == {("admin_key", key)}
    assert {event.address for event in events} == {"127.0.0.1"}
    assert all(event.before or event.after for event in events)
    written = json.dumps([[event.before, event.after] for event in events])
    assert not [secret for secret in secrets_in(response.json()) if secret in written]


class Tenant:
    """Calls of the tenants' API, each on an object of its own."""

    def __init__(self, http: httpx2.AsyncClient, keys: Seeded, admin_key: str) -> None:
        self._http = http
        self._auth = {"authorization": f"Bearer {keys.acme}"}
        self._staff = {"authorization": f"Bearer {admin_key}"}

    async def call(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return await self._http.request(method, f"/v1{path}", headers=self._auth, **more)

    async def operate(self, path: str, **body: Any) -> httpx2.Response:
        return await self._http.post(f"/v1{path}", headers=self._staff, json=body)

    async def upload(self) -> httpx2.Response:
        parts = {"config": ("c", CONFIG_BYTES), "weights": ("w", weights_of())}
        return await self.call("POST", "/adapters", data={"name": "poet"}, files=parts)

    async def update(self) -> httpx2.Response:
        """A second version of it."""
        parts = {"config": ("c", CONFIG_BYTES), "weights": ("w", weights_of(1))}
        fields = {"name": "poet", "activate": "true"}
        return await self.call("POST", "/adapters", data=fields, files=parts)

    async def file(self) -> httpx2.Response:
        content = {"file": ("a.jsonl", jsonl(line("a")))}
        return await self.call("POST", "/files", data={"purpose": "batch"}, files=content)

    async def batch(self) -> httpx2.Response:
        order = {"input_file_id": (await self.file()).json()["id"], "endpoint": URL}
        return await self.call("POST", "/batches", json=order | {"completion_window": "24h"})

    async def prefix(self) -> httpx2.Response:
        body = {"name": "p", "model": BASE, "prompt": "be brief " * 20}
        return await self.call("POST", "/prefixes", json=body)

    async def on_poet(self, method: str, path: str, **more: Any) -> httpx2.Response:
        await self.upload()
        await self.update()
        return await self.call(method, path, **more)

    async def delete_file(self) -> httpx2.Response:
        return await self.call("DELETE", f"/files/{(await self.file()).json()['id']}")

    async def cancel(self) -> httpx2.Response:
        return await self.call("POST", f"/batches/{(await self.batch()).json()['id']}/cancel")

    async def delete_prefix(self) -> httpx2.Response:
        return await self.call("DELETE", f"/prefixes/{(await self.prefix()).json()['id']}")

    async def delete_prompt(self) -> httpx2.Response:
        return await self.call("DELETE", f"/stored_prompts/{STORED}")

    async def unload(self) -> httpx2.Response:
        await self.upload()
        return await self.operate("/unload_lora_adapter", lora_name="poet", tenant="acme")


Call = Callable[[Tenant], Awaitable[httpx2.Response]]
POET = "/adapters/poet"
CALLS: dict[Route, tuple[Call, list[str]]] = {  # with the actions that the log tells of
    ("POST", "/v1/adapters"): (Tenant.upload, ["adapter_name.created"]),
    ("PATCH", "/v1/adapters/{name:path}"): (
        lambda of: of.on_poet("PATCH", POET, json={"canary": {"version": 2, "percent": 5}}),
        ["adapter_name.updated"],
    ),
    ("POST", "/v1/adapters/{name:path}/rollback"): (
        lambda of: of.on_poet("POST", POET + "/rollback"),
        ["adapter_name.updated"],
    ),
    ("POST", "/v1/adapters/{name:path}/preload"): (
        lambda of: of.on_poet("POST", POET + "@2/preload"),
        ["adapter.preloaded"],
    ),
    ("DELETE", "/v1/adapters/{name:path}"): (
        lambda of: of.on_poet("DELETE", POET + "@1"),
        ["adapter.removed", "adapter_name.updated"],
    ),
    ("DELETE", "/v1/models/{model_id:path}"): (
        lambda of: of.on_poet("DELETE", "/models/poet"),
        ["adapter.removed", "adapter.removed", "adapter_name.deleted"],
    ),
    ("POST", "/v1/unload_lora_adapter"): (
        Tenant.unload,
        ["adapter.removed", "adapter_name.deleted"],
    ),
    ("POST", "/v1/files"): (Tenant.file, ["file.created"]),
    ("DELETE", "/v1/files/{file_id}"): (Tenant.delete_file, ["file.deleted"]),
    ("POST", "/v1/batches"): (Tenant.batch, ["batch.created"]),
    ("POST", "/v1/batches/{batch_id}/cancel"): (Tenant.cancel, ["batch.cancelled"]),
    ("POST", "/v1/prefixes"): (Tenant.prefix, ["prefix.created"]),
    ("DELETE", "/v1/stored_prompts/{request_id}"): (
        Tenant.delete_prompt,
        ["stored_prompt.deleted"],
    ),
    ("DELETE", "/v1/prefixes/{prefix_id}"): (Tenant.delete_prefix, ["prefix.deleted"]),
}
STORED = "req_1"
LOADS: Route = ("POST", "/v1/load_lora_adapter")


def test_every_changing_route_of_the_tenants_api_is_here() -> None:
    routes = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and not route.path.startswith(PREFIX)
        for method in route.methods - {"GET", "HEAD", "OPTIONS"}
    }
    assert routes == set(CALLS) | CHANGES_NOTHING | {LOADS}


@pytest.fixture
def tenant(stand: AdminStand, keys: Seeded) -> Tenant:
    return Tenant(stand.http, keys, stand.keys["owner"])


@pytest.mark.parametrize("route", CALLS, ids=" ".join)
async def test_change_through_the_tenants_api_is_logged_once(
    app: FastAPI, tenant: Tenant, keys: Seeded, route: Route
) -> None:
    await app.state.engine.start()
    if route[1].startswith("/v1/stored_prompts"):
        acme = await app.state.authenticator.authenticate(keys.acme)
        await app.state.prompts.keep(acme, STORED, BASE, {"prompt": "hi"}, ["ho"])
    call, actions = CALLS[route]
    response = await call(tenant)
    assert response.status_code < 300, response.text
    events = await events_of(app, response)
    await app.state.engine.close()
    assert sorted(event.action for event in events) == actions
    kind = "admin_key" if "lora" in route[1] else "key"
    assert {(event.actor_kind, event.address) for event in events} == {(kind, "127.0.0.1")}


async def test_adapter_that_staff_loads_from_a_folder_is_logged_once(
    app: FastAPI, tenant: Tenant, tmp_path: Path
) -> None:
    folder = tmp_path / "adapters" / "poet"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_bytes(CONFIG_BYTES)
    (folder / "adapter_model.safetensors").write_bytes(weights_of())
    body = {"lora_name": "poet", "lora_path": str(folder), "tenant": "acme"}
    response = await tenant.operate("/load_lora_adapter", **body)
    [event] = await events_of(app, response)
    assert (event.action, event.actor_kind) == ("adapter_name.created", "admin_key")


async def test_log_of_a_prefix_does_not_hold_its_prompt(app: FastAPI, tenant: Tenant) -> None:
    await app.state.engine.start()
    [event] = await events_of(app, await tenant.prefix())
    await app.state.engine.close()
    assert event.after is not None
    assert "token_ids" not in event.after
