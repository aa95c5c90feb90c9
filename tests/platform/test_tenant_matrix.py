"""Every route of the tenants' API, asked by everybody: generated from the routes themselves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from tests.adapter_stand import CONFIG_BYTES, AdapterClient, base_folder, weights_of
from tests.admin_stand import admin_stand, lists_without_pages, untold
from tests.platform import test_admin_matrix
from tests.platform.batch_stand import jsonl, line
from tests.platform_stand import BASE, Served
from tests.until import until

from loraplex_platform.app import ROUTERS
from loraplex_platform.auth.service import KeyService
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.rest.route import PREFIX as ADMIN
from loraplex_platform.usage.invoice_service import InvoiceService, Month

Route = tuple[str, str]
CHAT: dict[str, Any] = {
    "model": BASE,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
}
COMPLETION = {"model": BASE, "prompt": "hi", "max_tokens": 2}
PREFIX = {"name": "brief", "model": BASE, "messages": CHAT["messages"]}


def documented() -> dict[str, Any]:
    app = FastAPI()
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    return app.openapi()


DOCUMENT = documented()
ROUTES: dict[Route, dict[str, Any]] = {  # that take a tenant's key
    (method.upper(), path): operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
    if operation["security"] == [{"ApiKey": []}]
}


@dataclass(frozen=True, slots=True)
class Stand:
    served: Served
    http: httpx2.AsyncClient

    async def call(
        self, method: str, path: str, key: str | None = None, **request: Any
    ) -> httpx2.Response:
        """`key` None is acme's, "" none at all."""
        key = self.served.keys.acme if key is None else key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.http.request(method, path, headers=headers, **request)

    async def made(self, path: str, **request: Any) -> dict[str, Any]:
        response = await self.call("POST", path, **request)
        assert response.status_code < 300, response.text
        made: dict[str, Any] = response.json()
        return made

    async def acme(self) -> Any:
        return await self.served.app.state.tenants.get("acme")

    async def key_without_scopes(self) -> str:
        tenant = await self.acme()
        project = await self.served.app.state.tenants.default_project(tenant)
        service: KeyService = self.served.app.state.keys
        return str(await service.create(tenant.id, project.id, scopes=()))


async def a_file(stand: Stand) -> str:
    files = {"file": ("in.jsonl", jsonl(line("a"))), "purpose": (None, "batch")}
    return str((await stand.made("/v1/files", files=files))["id"])


async def a_batch(stand: Stand) -> str:
    """That is not done before it is cancelled."""
    stand.served.engine.go_away()
    return str((await stand.made("/v1/batches", json=await batch_order(stand)))["id"])


async def batch_order(stand: Stand) -> dict[str, Any]:
    url = "/v1/chat/completions"
    return {"input_file_id": await a_file(stand), "endpoint": url, "completion_window": "24h"}


async def an_adapter(stand: Stand) -> str:
    """With two versions, so that it can be rolled back."""
    for seed in (0, 1):
        client = AdapterClient(stand.http, stand.served.keys.acme)
        made = await client.upload("matrix", weights_of(seed), activate="true")
        assert made.status_code == 201
    return "matrix"


async def a_prefix(stand: Stand) -> str:
    return str((await stand.made("/v1/prefixes", json=PREFIX))["id"])


async def a_live_request(stand: Stand) -> str:
    stand.served.engine.step_s = 0.5  # goes on for longer than the test
    asked = stand.call("POST", "/v1/chat/completions", json=CHAT | {"max_tokens": 200})
    task = asyncio.create_task(asked)
    stand.served.stack.callback(task.cancel)
    await until(lambda: stand.served.engine.num_running > 0)
    return str((await stand.call("GET", "/v1/requests")).json()["data"][0]["id"])


async def a_stored_prompt(stand: Stand) -> str:
    async with admin_stand(stand.served.app) as admin:
        setting = "/tenants/{tenant_id}/prompt_storage"
        await admin.call("PATCH", setting, {"stores_prompts": True}, key="acme")
    await stand.made("/v1/chat/completions", json=CHAT)
    await stand.served.app.state.inference.tasks.drain()
    return str((await stand.call("GET", "/v1/stored_prompts")).json()["data"][0]["id"])


async def an_invoice(stand: Stand) -> str:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    invoices = InvoiceService(stand.served.app.state.database, clock, "Example")
    return (await invoices.finalize(await stand.acme(), Month(2026, 6))).id


async def a_model(_: Stand) -> str:
    return "acme-only"


MAKERS: dict[str, Callable[[Stand], Awaitable[str]]] = {
    "{model_id}": a_model,
    "{request_id}/explain": a_live_request,
    "{prefix_id}": a_prefix,
    "/v1/stored_prompts/{request_id}": a_stored_prompt,
    "{file_id}": a_file,
    "{name}": an_adapter,
    "{batch_id}": a_batch,
    "{invoice_id}": an_invoice,
}
BODIES: dict[Route, dict[str, Any]] = {
    ("POST", "/v1/chat/completions"): {"json": CHAT},
    ("POST", "/v1/completions"): {"json": COMPLETION},
    ("POST", "/v1/prefixes"): {"json": PREFIX},
    ("PATCH", "/v1/adapters/{name}"): {"json": {"enabled": True}},
    ("POST", "/v1/files"): {
        "files": {"file": ("in.jsonl", jsonl(line("a"))), "purpose": (None, "batch")}
    },
    ("POST", "/v1/adapters"): {"data": {"name": "new"}, "files": {}},
    ("POST", "/v1/batches"): {},  # made from a file
}
BODILESS: set[Route] = {
    ("POST", "/v1/adapters/{name}/rollback"),
    ("POST", "/v1/adapters/{name}/preload"),
    ("POST", "/v1/batches/{batch_id}/cancel"),
}
OWN_MONTHS = {  # they name no object
    f"/v1/organization/exports/{{year}}-{{month}}/{{kind}}.{{format}}{ending}": ending
    for ending in ("", ".manifest.json")
}

VLLM_S = {  # the staff's, of no object: see test_adapter_operators
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
}

WHOLE = {  # of what there are few, or that has pages of its own
    "/v1/files/{file_id}/content",
    "/v1/models",
    "/v1/requests",
    "/v1/requests/{request_id}/explain",
    "/v1/organization/costs",
    "/v1/organization/exports/{year}-{month}/{kind}.{format}.manifest.json",
    "/v1/organization/usage/completions",
}


@pytest.fixture
def app(make_app: Callable[..., FastAPI], tmp_path: Path) -> FastAPI:
    return make_app(model=str(base_folder(tmp_path / "base")))


@pytest.fixture
async def stand(served: Served) -> AsyncIterator[Stand]:
    async with httpx2.AsyncClient(base_url=served.base_url, verify=False, timeout=60) as http:
        yield Stand(served, http)


async def path_of(stand: Stand, template: str) -> str:
    """A path to something of acme's, made when the template needs one."""
    if template in OWN_MONTHS:
        return "/v1/organization/exports/2026-06/events.csv" + OWN_MONTHS[template]
    for ending, make in MAKERS.items():
        if ending in template:
            name = ending[ending.index("{") : ending.index("}") + 1]
            return template.replace(name, await make(stand))
    assert "{" not in template, "a new route needs something to ask for"
    return template


async def request_of(stand: Stand, route: Route) -> dict[str, Any]:
    if route == ("POST", "/v1/batches"):
        return {"json": await batch_order(stand)}
    if route == ("POST", "/v1/adapters"):
        config = {"config": ("c", CONFIG_BYTES), "weights": ("w", weights_of())}
        return {"data": {"name": "new"}, "files": config}
    if route[1].endswith(("/usage/completions", "/costs")):
        return {"params": {"start_time": 1_780_000_000}}
    return BODIES.get(route, {})


def test_every_changing_route_has_its_line_here() -> None:
    needed = {route for route in ROUTES if route[0] in ("POST", "PATCH", "PUT")}
    assert needed == set(BODIES) | BODILESS


def test_every_list_comes_in_pages() -> None:
    assert lists_without_pages(ROUTES) == WHOLE


def test_every_route_is_in_one_of_the_matrices(app: FastAPI) -> None:
    asked = set(ROUTES) | {(method, ADMIN + path) for method, path in test_admin_matrix.ROUTES}
    operations = app.openapi()["paths"].items()
    routes = {(method.upper(), path) for path, methods in operations for method in methods}
    assert routes - asked == VLLM_S


FREE = {  # as it was judged, tested, set or asked, by whichever release
    "AdapterDetail.defaults",
    "AdapterObject.defaults",
    "StoredPromptObject.asked",
    "VersionObject.parity",
    "VersionObject.report",
}


def test_every_answer_says_what_it_holds() -> None:
    assert untold(DOCUMENT, ROUTES) == FREE


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
async def test_route_is_open_to_whom_it_should_be(stand: Stand, route: Route) -> None:
    method, template = route
    path, request = await path_of(stand, template), await request_of(stand, route)
    keys = stand.served.keys

    async def status(key: str) -> int:
        return (await stand.call(method, path, key, **request)).status_code

    async with admin_stand(stand.served.app) as admin:
        assert await status(admin.keys["owner"]) == 401, "an admin key opened the tenants' API"
    assert await status("") == 401
    assert await status(await stand.key_without_scopes()) == 403
    if "{" in template and template not in OWN_MONTHS:
        assert await status(keys.globex) == 404
    answer = await stand.call(method, path, keys.acme, **request)
    assert 200 <= answer.status_code < 300, answer.text


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_route_says_how_it_may_fail_in_the_shape_of_errors(route: Route) -> None:
    responses = ROUTES[route]["responses"]
    assert {"400", "401", "403", "404", "429", "503"} <= set(responses)
    for status, response in responses.items():
        if status.startswith(("4", "5")):
            [schema] = [kind["schema"] for kind in response["content"].values()]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}
