"""The Files API through the official client."""

import io
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import httpx2
import pytest
from fastapi import FastAPI
from fsspec.core import url_to_fs
from openai import (
    APIStatusError,
    AsyncOpenAI,
    BadRequestError,
    NotFoundError,
    PermissionDeniedError,
)
from tests.platform_stand import Served, listening

from loraplex_adapters.blobs import BlobStore
from loraplex_platform.auth.service import KeyService
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.files import service as file_service
from loraplex_platform.files.models import StoredFile
from loraplex_platform.files.ranges import ByteRange, parse_range
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.files.service import FileService
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.errors import RangeNotSatisfiable
from loraplex_platform.kit.principal import Principal
from loraplex_platform.models import ApiKey

CONTENT = b'{"custom_id": "a"}\n'


async def upload(client: AsyncOpenAI, name: str = "in.jsonl", content: bytes = CONTENT) -> str:
    return (await client.files.create(file=(name, io.BytesIO(content)), purpose="batch")).id


async def test_a_file_is_listed_read_and_deleted(served: Served) -> None:
    client = served.client()
    made = await client.files.create(file=("in put.jsonl", io.BytesIO(CONTENT)), purpose="batch")
    assert (made.object, made.bytes, made.filename) == ("file", len(CONTENT), "in put.jsonl")
    assert (made.status, made.purpose) == ("processed", "batch")
    assert made.expires_at == made.created_at + 30 * 86400
    assert await client.files.retrieve(made.id) == made
    assert (await client.files.content(made.id)).content == CONTENT
    assert [f.id async for f in client.files.list()] == [made.id]
    assert (await client.files.wait_for_processing(made.id)).id == made.id
    assert (await client.files.delete(made.id)).deleted
    assert [f.id async for f in client.files.list()] == []
    with pytest.raises(NotFoundError, match="No such File object"):
        await client.files.retrieve(made.id)


async def test_files_live_at_any_fsspec_url(
    make_app: Callable[..., FastAPI], served: Served
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    app = make_app(files_url=url)
    service: FileService = app.state.files
    async with listening(app) as base_url:
        client = replace(served, base_url=base_url).client()
        file_id = await upload(client)
        assert (await client.files.content(file_id)).content == CONTENT
        part = await client.files.content(file_id, extra_headers={"Range": "bytes=2-5"})
        assert part.content == CONTENT[2:6]
        fs, path = url_to_fs(url)
        assert len(fs.find(path)) == 1
        await client.files.delete(file_id)
        assert await service.sweep() == 1
        assert fs.find(path) == []


async def test_the_client_pages_through_all_files_in_both_orders(served: Served) -> None:
    client = served.client()
    ids = [await upload(client, f"{i}.jsonl") for i in range(5)]
    assert [f.id async for f in client.files.list(limit=2, order="asc")] == ids
    assert [f.id async for f in client.files.list(limit=2)] == ids[::-1]
    assert [f.id async for f in client.files.list(purpose="user_data")] == []


async def test_expiry_is_the_clients_within_bounds(served: Served) -> None:
    client = served.client()
    made = await client.files.create(
        file=("a.txt", b"text"),
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert made.expires_at == made.created_at + 3600
    with pytest.raises(BadRequestError) as caught:
        await client.files.create(
            file=("a.txt", b"text"),
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 60},
        )
    assert caught.value.param == "expires_after.seconds"


@pytest.mark.parametrize("route", ["retrieve", "content", "delete"])
async def test_another_tenants_file_does_not_exist(served: Served, route: str) -> None:
    file_id = await upload(served.client())
    theirs = served.client(served.keys.globex)
    assert [f.id async for f in theirs.files.list()] == []
    with pytest.raises(NotFoundError):
        await getattr(theirs.files, route)(file_id)


@pytest.mark.parametrize(
    ("header", "status", "content"),
    [
        ("bytes=2-4", 206, CONTENT[2:5]),
        ("bytes=-3", 206, CONTENT[-3:]),
        ("bytes=5-", 206, CONTENT[5:]),
        ("lines=1-2", 200, CONTENT),
    ],
)
async def test_a_range_of_the_content(
    served: Served, header: str, status: int, content: bytes
) -> None:
    file_id = await upload(served.client())
    headers = {"authorization": f"Bearer {served.keys.acme}", "range": header}
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = await http.get(f"{served.base_url}/v1/files/{file_id}/content", headers=headers)
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers.get("content-disposition", "filename*=UTF-8''in.jsonl").endswith(
        "in.jsonl"
    )


async def test_a_range_beyond_the_content_is_an_error_that_names_its_size(served: Served) -> None:
    file_id = await upload(served.client())
    headers = {"authorization": f"Bearer {served.keys.acme}", "range": "bytes=999-"}
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = await http.get(f"{served.base_url}/v1/files/{file_id}/content", headers=headers)
    size = f"bytes */{len(CONTENT)}"
    assert (answer.status_code, answer.headers["content-range"]) == (416, size)
    assert answer.json()["error"]["code"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=-99", ByteRange(0, 10)),
        ("bytes=-", None),
    ],
)
def test_ranges_are_cut_to_the_file(header: str | None, expected: ByteRange | None) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=-0", "bytes=5-3"])
def test_a_range_without_bytes_is_refused(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable):
        parse_range(header, 10)


@pytest.mark.parametrize(
    ("filename", "fields", "param", "code"),
    [
        ("a.txt", {"purpose": "batch"}, "file", "invalid_file_format"),
        ("a.jsonl", {"purpose": "mischief"}, "purpose", "invalid_value"),
        ("a.jsonl", {}, "purpose", "missing_required_parameter"),
        (None, {"purpose": "batch"}, "file", "missing_required_parameter"),
    ],
)
async def test_a_wrong_upload_is_told_what_is_wrong(
    served: Served, filename: str | None, fields: dict[str, str], param: str, code: str
) -> None:
    files = {"other" if filename is None else "file": (filename or "a.jsonl", CONTENT)}
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = await http.post(
            f"{served.base_url}/v1/files",
            data=fields,
            files=files,
            headers={"authorization": f"Bearer {served.keys.acme}"},
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


async def test_a_file_over_the_limit_is_refused_and_leaves_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_service, "MAX_BATCH_BYTES", 100)
    with pytest.raises(APIStatusError) as caught:
        await upload(served.client(), content=b"x" * 101)
    assert (caught.value.status_code, caught.value.code) == (413, "file_too_large")
    assert [f.id async for f in served.client().files.list()] == []


async def test_a_key_without_the_scope_and_an_anonymous_caller_are_turned_away(
    served: Served,
) -> None:
    database = served.app.state.database
    async with database.reading() as session:
        known = (await session.scalars(across_tenants(ApiKey))).first()
    keys: KeyService = served.app.state.keys
    weak = str(await keys.create(known.tenant_id, known.project_id, scopes=["inference"]))
    with pytest.raises(PermissionDeniedError):
        await upload(served.client(weak))
    async with httpx2.AsyncClient(timeout=60) as http:
        assert (await http.post(f"{served.base_url}/v1/files")).status_code == 401


async def stored(served: Served, file_id: str) -> StoredFile | None:
    async with served.app.state.database.reading() as session:
        return await FileRepository(session).raw(file_id)


def at(served: Served, later: timedelta) -> FileService:
    """The same files, seen some time later."""
    clock = ManualClock(SystemClock().now() + later)
    blobs = BlobStore(served.app.state.files._blobs._root)
    return FileService(served.app.state.database, blobs, clock)


async def test_an_expired_file_goes_with_its_content(served: Served) -> None:
    file_id = await upload(served.client())
    later = at(served, timedelta(days=31))
    assert await later.sweep() == 0  # expires it
    assert await later.sweep() == 1
    assert await stored(served, file_id) is None
    with pytest.raises(FileNotFoundError):
        later.open_held(file_id)


async def test_a_deleted_file_that_a_job_holds_is_readable_to_it(served: Served) -> None:
    files: FileService = served.app.state.files
    file_id = await upload(served.client())
    async with served.app.state.database.unit_of_work() as session:
        await FileRepository(session).hold(file_id, 1)
    await served.client().files.delete(file_id)
    assert await files.sweep() == 0
    with files.open_held(file_id) as stream:
        assert stream.read() == CONTENT
    async with served.app.state.database.unit_of_work() as session:
        await FileRepository(session).hold(file_id, -1)
    assert await files.sweep() == 1


async def test_an_upload_that_never_ended_is_swept(served: Served) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionError

    files: FileService = served.app.state.files
    principal = await served.app.state.authenticator.authenticate(served.keys.acme)
    assert isinstance(principal, Principal)
    form = file_service.UploadForm(purpose="batch")
    with pytest.raises(ConnectionError):
        await files.create(principal, form, "a.jsonl", Broken())
    assert await files.sweep() == 0
    assert await at(served, timedelta(hours=7)).sweep() == 1
