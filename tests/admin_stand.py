"""What tests of the admin API stand on: keys of several roles, and one object of each kind."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI

from loraplex_platform.auth.admin_keys import AdminKeyService
from loraplex_platform.rest.route import PREFIX
from loraplex_platform.tenants.service import TenantService

PROJECT = "/tenants/{tenant_id}/projects/{project_id}"


@dataclass(frozen=True, slots=True)
class AdminStand:
    """A client of the admin API, and admin keys by name."""

    http: httpx2.AsyncClient
    keys: Mapping[str, str]  # owner, viewer, acme (its admin), acme_viewer, globex (its admin)
    acme: str  # the tenant's id
    globex: str
    project: str  # acme's default project

    async def call(
        self, method: str, path: str, body: object = None, *, key: str = "owner", **headers: str
    ) -> httpx2.Response:
        """`path` may name acme's things: {tenant_id}, {project_id}."""
        auth = {"authorization": f"Bearer {self.keys[key]}"} if key else {}
        renamed = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(
            method, PREFIX + self.path(path), json=body, headers=auth | renamed
        )

    async def made(self, path: str, body: object, *, key: str = "owner") -> dict[str, Any]:
        response = await self.call("POST", path, body, key=key)
        assert response.status_code == 201, response.text
        made: dict[str, Any] = response.json()
        return made

    def path(self, template: str) -> str:
        return template.replace("{tenant_id}", self.acme).replace("{project_id}", self.project)


@asynccontextmanager
async def admin_stand(app: FastAPI) -> AsyncIterator[AdminStand]:
    tenants: TenantService = app.state.tenants
    acme, globex = await tenants.get("acme"), await tenants.get("globex")
    service: AdminKeyService = app.state.admin_keys
    roles = {
        "owner": ("owner", None),
        "viewer": ("viewer", None),
        "acme": ("tenant_admin", acme.id),
        "acme_viewer": ("tenant_viewer", acme.id),
        "globex": ("tenant_admin", globex.id),
    }
    keys = {
        name: str(await service.create(name, role, tenant_id=tenant_id))
        for name, (role, tenant_id) in roles.items()
    }
    project = await tenants.default_project(acme)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        yield AdminStand(http, keys, acme.id, globex.id, project.id)


def lists_without_pages(routes: Mapping[tuple[str, str], Mapping[str, Any]]) -> set[str]:
    """What is read as a whole, of operations of an OpenAPI document by method and path."""
    return {
        path
        for (method, path), operation in routes.items()
        if method == "GET" and not path.endswith("}")
        if not {"after", "limit"} <= {each["name"] for each in operation.get("parameters", ())}
    }


def untold(document: Mapping[str, Any], routes: Mapping[tuple[str, str], Any]) -> set[str]:
    """Answers in JSON, and fields of theirs, of which the document does not say what they hold."""
    schemas, found, seen = document["components"]["schemas"], set(), set()

    def walk(name: str, schema: Mapping[str, Any]) -> None:
        kind = schema.get("type")
        if "$ref" in schema:
            model = schema["$ref"].rpartition("/")[2]
            if model not in seen:
                seen.add(model)
                walk(model, schemas[model])
        elif "anyOf" in schema:
            for each in schema["anyOf"]:
                walk(name, each)
        elif "properties" in schema:
            for field, inner in schema["properties"].items():
                walk(f"{name}.{field}", inner)
        elif kind in ("object", "array"):
            inner = schema.get("additionalProperties" if kind == "object" else "items")
            walk(name, inner if isinstance(inner, dict) else {})
        elif kind is None:
            found.add(name)

    for (method, path), operation in routes.items():
        for status, answer in operation["responses"].items():
            told = answer.get("content", {}).get("application/json")
            if status.startswith("2") and told is not None:
                walk(f"{method} {path}", told.get("schema", {}))
    return found
