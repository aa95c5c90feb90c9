"""A closed tenant leaves its books behind and an archive for a while, and nothing else."""

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from openai import AuthenticationError
from sqlalchemy import text
from tests.adapter_stand import AdapterClient, base_folder, weights_of
from tests.admin_stand import PROJECT, AdminStand, admin_stand
from tests.platform.batch_stand import jsonl, line, run
from tests.platform_stand import BASE, Served, engine_of, usage_of
from tests.until import until
from typer.testing import CliRunner

from loraplex_adapters.blobs import BlobStore
from loraplex_adapters.store import AdapterStore
from loraplex_platform.auth.authenticator import CACHE_S
from loraplex_platform.cli import app as command_line
from loraplex_platform.control.closing import EXPORT_LIFE, LAST_WORD, Closer
from loraplex_platform.control.exports import LEFT_OUT, TenantExportService, exported_tables
from loraplex_platform.control.retention import Retention
from loraplex_platform.db.base import Base
from loraplex_platform.kit.clock import ManualClock, SystemClock

CONTENT = (
    "batch",
    "batch_line",
    "login_session",
    "one_time_link",
    "person",
    "prefix",
    "stored_prompt",
    "adapter_name",
)
ADMIN = {"email": "a@b", "role": "tenant_admin"}


@pytest.fixture
def app(make_app: Callable[..., FastAPI], tmp_path: Path) -> FastAPI:
    return make_app(model=str(base_folder(tmp_path / "base")))


def rows(app: FastAPI, query: str, tenant_id: str) -> int:
    engine = engine_of(app.state.database.url)
    with engine.connect() as connection:
        count: int = connection.execute(text(query), {"t": tenant_id}).scalar_one()
    engine.dispose()
    return count


async def fill(served: Served, stand: AdminStand) -> None:
    """Something of every kind that acme can have."""
    app, client = served.app, served.client()
    invited = await stand.made("/tenants/{tenant_id}/people", ADMIN)
    await app.state.people.redeem(invited["token"], "a long password")
    await app.state.sessions.open("a@b", "a long password")
    await stand.made("/tenants/{tenant_id}/webhooks", {"url": "https://example.org/"})
    setting = "/tenants/{tenant_id}/prompt_storage"
    await stand.call("PATCH", setting, {"stores_prompts": True}, key="acme")
    await client.chat.completions.create(
        model=BASE, messages=[{"role": "user", "content": "a secret wish"}], max_tokens=2, user="u"
    )
    await run(client, jsonl(line("a")))
    adapters = AdapterClient(stand.http, served.keys.acme)
    await adapters.upload("poet")
    await adapters.upload("poet", weights_of(1))
    auth = {"authorization": f"Bearer {served.keys.acme}"}
    prefix = {"name": "p", "model": BASE, "prompt": "be brief " * 20}
    assert (await stand.http.post("/v1/prefixes", json=prefix, headers=auth)).status_code == 200


async def until_tested(adapters: AdapterClient) -> None:
    """Nothing is written about the versions any more."""
    for name in ("acme-only", "poet", "support"):
        await until(lambda name=name: _is_tested(adapters, name))


async def _is_tested(adapters: AdapterClient, name: str) -> bool:
    versions = (await adapters.call("GET", f"/{name}")).json()["versions"]
    return all(version["parity"] is not None for version in versions)


@pytest.fixture
async def stand(served: Served) -> AsyncIterator[AdminStand]:
    async with admin_stand(served.app) as stand:
        await fill(served, stand)
        yield stand


def opened(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        found = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read() for name, file in found.items() if file is not None}


def lines(archive: dict[str, bytes], table: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in archive[f"{table}.jsonl"].splitlines()]


async def test_export_holds_all_that_is_the_tenants_and_no_secret(
    served: Served, stand: AdminStand
) -> None:
    response = await stand.call("GET", "/tenants/{tenant_id}/export", key="acme")
    assert response.headers["content-type"] == "application/gzip"
    archive = opened(response.content)
    for table in ("tenant", "project", "api_key", "person", "batch", "usage_event", "webhook"):
        assert {row.get("tenant_id", stand.acme) for row in lines(archive, table)} == {stand.acme}
    assert [row["name"] for row in lines(archive, "adapter_name")] == [
        "acme-only",
        "poet",
        "support",
    ]
    files = {row["id"]: row["num_bytes"] for row in lines(archive, "file")}
    assert {f"files/{id}": size for id, size in files.items()} == {
        name: len(content) for name, content in archive.items() if name.startswith("files/")
    }
    assert len([name for name in archive if name.startswith("adapters/")]) == 2
    whole = b"".join(archive.values())
    columns = set(lines(archive, "api_key")[0]) | set(lines(archive, "webhook")[0])
    assert not columns & {"digest", "previous_digest", "sealed_secret"}
    assert b"password_hash" not in whole
    assert b"a secret wish" not in whole


async def test_command_writes_the_same_archive(
    served: Served, stand: AdminStand, tmp_path: Path
) -> None:
    await until_tested(AdapterClient(stand.http, served.keys.acme))
    target = tmp_path / "acme.tar.gz"
    environment = {
        "LORAPLEX_HOME": str(tmp_path),
        "LORAPLEX_DATABASE_URL": served.app.state.database.url,
    }
    command = ["tenants", "export", "acme", "--to", str(target)]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, command, env=environment)
    assert done.exit_code == 0, done.output
    api = await stand.call("GET", "/tenants/{tenant_id}/export")
    mine, theirs = opened(target.read_bytes()), opened(api.content)
    assert mine.keys() == theirs.keys()
    differing = {name for name in mine if mine[name] != theirs[name]}
    assert differing <= {"audit_event.jsonl"}, "the first export is in the second, and that is all"


async def test_closed_tenant_leaves_its_books_and_nothing_else(
    served: Served, stand: AdminStand
) -> None:
    app, client = served.app, served.client()
    num_events = len(await usage_of(app))
    await stand.call("DELETE", "/tenants/{tenant_id}")
    await app.state.housekeeper.tidy()
    assert (await stand.call("GET", "/tenants/{tenant_id}")).json()["state"] == "closed"
    keys = (await stand.call("GET", PROJECT + "/keys")).json()["data"]
    assert all(key["revoked_at"] for key in keys)
    assert (await stand.call("GET", "/tenants/{tenant_id}", key="acme")).status_code == 401
    assert (await stand.call("GET", f"/tenants/{stand.globex}", key="globex")).status_code == 200
    await asyncio.sleep(CACHE_S)  # the longest a key is believed without a look
    with pytest.raises(AuthenticationError):
        await client.models.list()
    left = {
        name: rows(app, f"SELECT count(*) FROM {name} WHERE tenant_id = :t", stand.acme)
        for name in CONTENT
    }
    assert left == dict.fromkeys(CONTENT, 0)
    for table, alive in (("adapter", "removed_at"), ("file", "deleted_at")):
        living = f"SELECT count(*) FROM {table} WHERE tenant_id = :t AND {alive} IS NULL"
        assert rows(app, living, stand.acme) == 0
    events = "SELECT count(*) FROM usage_event WHERE tenant_id = :t"
    assert rows(app, events, stand.acme) == num_events
    assert rows(app, events + " AND end_user IS NOT NULL", stand.acme) == 0
    for table in ("ledger_entry", "audit_event", "project"):
        assert rows(app, f"SELECT count(*) FROM {table} WHERE tenant_id = :t", stand.acme) > 0


def closer_at(served: Served, home: Path, days: float) -> Closer:
    """The housekeeper's, at another time."""
    database = served.app.state.database
    clock = ManualClock(SystemClock().now() + timedelta(days=days))
    blobs, store = BlobStore(home / "files"), AdapterStore(home / "adapters")
    exports = TenantExportService(database, blobs, store, clock)
    return Closer(database, exports, Retention(database, clock), clock)


async def test_webhooks_have_the_last_word_and_go_with_their_secrets(
    served: Served, stand: AdminStand, tmp_path: Path
) -> None:
    await stand.call("DELETE", "/tenants/{tenant_id}")
    await served.app.state.housekeeper.tidy()
    told = "SELECT count(*) FROM webhook_delivery WHERE tenant_id = :t AND type = 'tenant.closed'"
    assert rows(served.app, told, stand.acme) == 1
    await closer_at(served, tmp_path, LAST_WORD.total_seconds() / 86_400 + 0.01).run_once()
    for table in ("webhook", "webhook_delivery"):
        count = f"SELECT count(*) FROM {table} WHERE tenant_id = :t"
        assert rows(served.app, count, stand.acme) == 0


async def test_last_export_is_kept_for_a_while(
    served: Served, stand: AdminStand, tmp_path: Path
) -> None:
    await stand.call("DELETE", "/tenants/{tenant_id}")
    await served.app.state.housekeeper.tidy()
    kept = await stand.call("GET", "/tenants/{tenant_id}/export")
    archive = opened(kept.content)
    assert {row["email"] for row in lines(archive, "person")} == {"a@b"}
    assert any(name.startswith("files/") for name in archive)
    await closer_at(served, tmp_path, EXPORT_LIFE.days + 0.1).run_once()
    assert (await stand.call("GET", "/tenants/{tenant_id}/export")).status_code == 404


async def test_closing_that_was_cut_short_keeps_the_whole_export(
    served: Served, stand: AdminStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(_: Closer, tenant_id: str) -> None:
        raise OSError("killed")

    await stand.call("DELETE", "/tenants/{tenant_id}")
    with monkeypatch.context() as patch:
        patch.setattr(Closer, "_close", die)  # its batches are erased by then
        with pytest.raises(OSError, match="killed"):
            await served.app.state.housekeeper.tidy()
    halfway = opened((await stand.call("GET", "/tenants/{tenant_id}/export")).content)
    assert lines(halfway, "batch")
    await served.app.state.housekeeper.tidy()
    assert (await stand.call("GET", "/tenants/{tenant_id}")).json()["state"] == "closed"
    kept = opened((await stand.call("GET", "/tenants/{tenant_id}/export")).content)
    assert lines(kept, "batch") == lines(halfway, "batch")
    assert lines(kept, "prefix")


def test_every_table_of_tenants_is_exported_or_left_out_on_purpose() -> None:
    owned = {table.name for table in Base.metadata.sorted_tables if "tenant_id" in table.c}
    assert owned > LEFT_OUT
    assert {table.name for table in exported_tables()} == (owned - LEFT_OUT) | {"tenant"}


async def test_export_that_fails_erases_nothing(
    served: Served, stand: AdminStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(tenant_id: str) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(served.app.state.tenant_exports, "keep", fail)
    await stand.call("DELETE", "/tenants/{tenant_id}")
    with pytest.raises(OSError, match="space"):
        await served.app.state.housekeeper.tidy()
    assert (await stand.call("GET", "/tenants/{tenant_id}")).json()["state"] == "closing"
    assert rows(served.app, "SELECT count(*) FROM person WHERE tenant_id = :t", stand.acme) == 1
