"""vLLM's load and unload routes: for staff, from configured folders."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from tests.adapter_stand import AdapterClient, base_folder, code_of
from tests.adapters.folders import write_adapter
from tests.admin_stand import AdminStand, admin_stand
from tests.platform_stand import Seeded

from loraplex_engine.fake import FakeEngine

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
async def stand(
    make_app: Callable[..., FastAPI], tmp_path: Path, keys: Seeded
) -> AsyncIterator[AdminStand]:
    base = base_folder(tmp_path / "base")
    (tmp_path / "allowed").mkdir()
    app = make_app(model=str(base), adapter_folders=(str(tmp_path / "allowed"),))
    async with admin_stand(app) as stand:
        yield stand


async def post(stand: AdminStand, path: str, body: object, key: str = "owner") -> httpx2.Response:
    headers = {"authorization": f"Bearer {stand.keys[key]}"}
    return await stand.http.post(path, json=body, headers=headers)


async def test_an_operator_loads_replaces_and_unloads_a_folder(
    stand: AdminStand, keys: Seeded, engine: FakeEngine, tmp_path: Path
) -> None:
    folder = write_adapter(tmp_path / "allowed" / "lora")
    body = {"lora_name": "sql", "lora_path": str(folder)}
    loaded = await post(stand, LOAD + "?tenant=acme", body)
    assert loaded.text == "Success: LoRA adapter 'sql' added successfully."
    acme, globex = (AdapterClient(stand.http, key) for key in (keys.acme, keys.globex))
    assert (await acme.ask("sql")).status_code == 200
    assert (await globex.ask("sql")).status_code == 404
    assert code_of(await post(stand, LOAD + "?tenant=acme", body)) == (409, "name_taken")
    write_adapter(folder, lora_alpha=16)
    await post(stand, LOAD, body | {"tenant": "acme", "load_inplace": True})
    assert (await acme.call("GET", "/sql")).json()["current"] == 2
    gone = await post(stand, UNLOAD, {"lora_name": "sql", "tenant": "acme"})
    assert gone.status_code == 200
    assert (await acme.ask("sql")).status_code == 404
    again = await post(stand, UNLOAD, {"lora_name": "sql", "tenant": "acme"})
    assert code_of(again) == (404, "unknown_name")


async def test_paths_outside_the_configured_folders_are_refused(
    stand: AdminStand, tmp_path: Path
) -> None:
    outside, root = write_adapter(tmp_path / "outside"), tmp_path / "allowed"
    (root / "link").symlink_to(outside)
    paths = [outside, root / ".." / "outside", root / "link", f"{root}-not", "lora", "a\0b"]
    for path in paths:
        body = {"lora_name": "x", "lora_path": str(path), "tenant": "acme"}
        assert code_of(await post(stand, LOAD, body)) == (403, "path_not_allowed"), path


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_only_staff_who_may_change_tenants_get_in(
    stand: AdminStand, keys: Seeded, path: str
) -> None:
    body = {"lora_name": "support", "tenant": "acme"} | (
        {"lora_path": "/x"} if path == LOAD else {}
    )
    for key, status in (("viewer", 403), ("acme", 403), ("globex", 403)):
        assert (await post(stand, path, body, key)).status_code == status
    for key in ("", keys.acme):
        headers = {"authorization": f"Bearer {key}"}
        assert (await stand.http.post(path, json=body, headers=headers)).status_code == 401
    assert (await AdapterClient(stand.http, keys.acme).ask("support")).status_code == 200


async def test_a_malformed_folder_and_a_missing_tenant_say_what_is_wrong(
    stand: AdminStand, tmp_path: Path
) -> None:
    (tmp_path / "allowed" / "empty").mkdir()
    body = {"lora_name": "x", "lora_path": str(tmp_path / "allowed" / "empty")}
    assert code_of(await post(stand, LOAD, body)) == (400, "missing_required_parameter")
    assert code_of(await post(stand, LOAD, body | {"tenant": "acme"})) == (400, "missing_file")
