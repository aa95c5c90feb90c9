"""The edge: what is too large, too deep, too slow or ambiguous is refused in our error shape."""

import asyncio
import contextlib
import itertools
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import StreamingResponse
from structlog.testing import capture_logs
from tests.admin_stand import admin_stand
from tests.platform_stand import BASE, NO_TLS, Served
from tests.until import until

from loraplex_adapters.store import AdapterStore
from loraplex_admin.app import mount_console
from loraplex_platform import middleware, protocol
from loraplex_platform.config import Settings
from loraplex_platform.kit.json_depth import MAX_DEPTH, JsonDepth

FORM = "multipart/form-data; boundary=b"
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"


async def raw(served: Served, request: bytes) -> tuple[int, dict[str, object]]:
    """The status and the error of an answer to bytes as they are."""
    host, port = served.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    status, body = await answer_of(reader)
    writer.close()
    return status, body["error"]


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Its status and what its JSON says."""
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"content-length: (\d+)", head.lower())
        body = await reader.readexactly(int(length))
    return int(head.split()[1]), json.loads(body)


def with_key(served: Served, *lines: str) -> str:
    lines = (f"authorization: Bearer {served.keys.acme}", *lines)
    return HEAD + "".join(f"{line}\r\n" for line in lines) + "\r\n"


def with_body(served: Served, body: bytes) -> bytes:
    return with_key(served, f"content-length: {len(body)}").encode() + body


@pytest.mark.parametrize("depth", [MAX_DEPTH, 1_000, 200_000])
async def test_deeply_nested_json_is_a_bad_request(served: Served, depth: int) -> None:
    body = b'{"model":' + b"[" * depth + b"]" * depth + b"}"
    status, error = await raw(served, with_body(served, body))
    assert status == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert f"nested deeper than {MAX_DEPTH}" in str(error["message"])


@given(
    value=st.recursive(
        st.text('a"\\[]{}é\n') | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('x["\\'), inner),
        max_leaves=20,
    ),
    cuts=st.lists(st.integers(0, 400)),
)
def test_depth_is_that_of_the_brackets_outside_of_strings(value: object, cuts: list[int]) -> None:
    def depth(value: object) -> int:
        if not isinstance(value, list | dict):
            return 0
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)

    text = json.dumps([value], ensure_ascii=False).encode()
    left = MAX_DEPTH - depth([value])
    for spare in (left, left + 1):
        wrapped, nesting = b"[" * spare + text + b"]" * spare, JsonDepth()
        edges = [0, *sorted(cuts), len(wrapped)]
        kept = [nesting.feed(wrapped[a:b]) for a, b in itertools.pairwise(edges)]
        assert all(kept) == (spare == left)
        assert nesting.depth == 0 or not all(kept)


async def assert_hung_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # while something was on its way
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_head_that_never_ends_is_hung_up_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    host, port = served.base_url.removeprefix("http://").split(":")
    for sent in (b"", HEAD.encode()):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        await assert_hung_up(reader, writer)


async def asked(
    served: Served, path: str = "/livez"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which one request has been answered."""
    host, port = served.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await ask(reader, writer, path)
    return reader, writer


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str = "/livez"
) -> None:
    writer.write(f"GET {path} HTTP/1.1\r\nhost: test\r\n\r\n".encode())
    status, _ = await answer_of(reader)
    assert status == 200


async def hurried(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose first answer makes all heads after its own due within 0.1 s."""

    async def hurry() -> None:
        monkeypatch.setattr(protocol, "HEAD_S", 0.1)

    served.app.add_api_route("/hurry", hurry)
    return await asked(served, "/hurry")


async def test_a_connection_may_idle_between_requests_longer_than_a_head_may_take(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs up first does so while a request is on its way, which is then lost."""
    reader, writer = await hurried(served, monkeypatch)
    await asyncio.sleep(0.3)
    await ask(reader, writer)
    writer.write(HEAD.encode())
    await assert_hung_up(reader, writer)


async def test_an_idle_connection_is_ended_at_last(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "IDLE_S", 0.1)
    reader, writer = await asked(served)
    await assert_hung_up(reader, writer)


async def test_a_long_answer_is_not_cut_by_the_time_for_heads(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = await hurried(served, monkeypatch)
    served.engine.step_s = 0.02
    body = {"model": BASE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
    writer.write(with_body(served, json.dumps(body).encode()))
    status, answer = await answer_of(reader)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 10)
    writer.close()


async def test_a_client_that_does_not_read_its_answer_is_hung_up_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "STALLED_S", 0.1)
    done = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"a" * 65536
                await asyncio.sleep(0)
        finally:
            done.set()

    served.app.add_api_route("/endless", lambda: StreamingResponse(endless()))
    host, port = served.base_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(b"GET /endless HTTP/1.1\r\nhost: test\r\n\r\n")
    async with asyncio.timeout(60):
        await done.wait()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_too_many_headers_are_refused(served: Served) -> None:
    lines = [f"x-{i}: a" for i in range(middleware.MAX_HEADERS)]
    status, error = await raw(served, with_key(served, *lines).encode())
    assert (status, error["code"]) == (431, "request_too_large")


async def test_too_large_headers_are_refused(served: Served) -> None:
    line = "x-long: " + "a" * middleware.MAX_HEADER_BYTES
    status, _ = await raw(served, with_key(served, line).encode())
    assert status == 431


async def test_body_that_never_ends_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "BODY_S", 0.1)
    status, _ = await raw(served, with_key(served, "content-length: 100").encode() + b"{")
    assert status == 408


async def test_chunked_body_is_counted_as_it_comes(served: Served) -> None:
    chunk = b"a" * (1 << 20)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for _ in range(11))
    head = with_key(served, "transfer-encoding: chunked").encode()
    status, error = await raw(served, head + chunks)  # there is no last chunk
    assert (status, error["code"]) == (413, "request_too_large")


async def test_length_beside_chunks_is_refused(served: Served) -> None:
    head = with_key(served, "transfer-encoding: chunked", "content-length: 5").encode()
    status, _ = await raw(served, head + b"0\r\n\r\n")
    assert status == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("files/%00", 404),
        ("adapters/a%00", 404),
        ("prefixes/%00", 404),
        ("stored_prompts/%00", 404),
        ("batches/%00", 404),
        ("batches?after=%00", 400),
    ],
)
async def test_nul_in_an_address_is_told_alike_whatever_the_database(
    served: Served, path: str, status: int
) -> None:
    async with httpx2.AsyncClient(verify=NO_TLS, timeout=60) as http:
        headers = {"authorization": f"Bearer {served.keys.acme}"}
        answer = await http.get(f"{served.base_url}/v1/{path}", headers=headers)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("text", ["\0", "\ud800"], ids=["NUL", "half a pair"])
async def test_what_no_database_keeps_in_a_body_is_never_a_fault_of_ours(
    served: Served, text: str
) -> None:
    async with admin_stand(served.app) as stand:
        staff, unload = stand.keys["owner"], "/v1/unload_lora_adapter"
        job = {"endpoint": "/v1/completions", "completion_window": "24h"}
        for path, key, body in (
            (unload, staff, {"lora_name": text, "tenant": "acme"}),
            (unload, staff, {"lora_name": "a", "tenant": text}),
            ("/v1/batches", served.keys.acme, job | {"input_file_id": text}),
            (
                "/v1/batches",
                served.keys.acme,
                job | {"input_file_id": "f", "metadata": {"a": text}},
            ),
            (
                "/v1/batches",
                served.keys.acme,
                job | {"input_file_id": "f", "metadata": {text: "a"}},
            ),
        ):
            headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            answer = await stand.http.post(path, content=json.dumps(body), headers=headers)
            assert answer.status_code == 400, answer.text


PART = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc'


@pytest.mark.parametrize(
    "path",
    [
        "/v1/files",
        "/v1/adapters",
        "/v1/chat/completions",
        "/v1/batches",
        "/api/admin/v1/tenants",
        "/admin/sign-in",
    ],
)
@pytest.mark.parametrize("sent", [PART, b""], ids=["part of the body", "none of it"])
async def test_a_client_that_hangs_up_amid_its_body_is_no_fault_of_ours(
    served: Served,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    path: str,
    sent: bytes,
) -> None:
    mount_console(served.app)
    kind = "application/json" if "batches" in path or "chat" in path else FORM
    async with admin_stand(served.app) as stand:
        key = stand.keys["owner"] if path.startswith("/api") else served.keys.acme
    host, port = served.base_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    with capture_logs() as logs:
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\n"
        head += f"authorization: Bearer {key}\r\nidempotency-key: a\r\n"
        head += f"content-type: {kind}\r\ncontent-length: 1000000\r\n\r\n"
        writer.write(head.encode() + sent)
        await writer.drain()
        writer.close()
        await until(lambda: any(entry["event"] == "request" for entry in logs))
    assert [(entry["event"], entry.get("status")) for entry in logs] == [("request", 400)]
    assert caplog.text == ""
    assert AdapterStore(settings.adapter_store).sweep_drafts(-60, time.time()) == 0
