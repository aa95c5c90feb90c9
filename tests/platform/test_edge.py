"""The edge: what is too large, too deep, too slow or ambiguous is refused in our error shape."""

import asyncio
import json

import pytest
from tests.platform_stand import Served

from loraplex_platform import middleware

HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"


async def raw(served: Served, request: bytes) -> tuple[int, dict[str, object]]:
    """The status and the error of an answer to bytes as they are."""
    host, port = served.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
    writer.close()
    return int(head.split()[1]), json.loads(body)["error"]


def with_key(served: Served, *lines: str) -> str:
    lines = (f"authorization: Bearer {served.keys.acme}", *lines)
    return HEAD + "".join(f"{line}\r\n" for line in lines) + "\r\n"


def with_body(served: Served, body: bytes) -> bytes:
    return with_key(served, f"content-length: {len(body)}").encode() + body


@pytest.mark.parametrize("depth", [1_000, 200_000])
async def test_deeply_nested_json_is_a_bad_request(served: Served, depth: int) -> None:
    body = b'{"model":' + b"[" * depth + b"]" * depth + b"}"
    status, error = await raw(served, with_body(served, body))
    assert status == 400
    assert set(error) == {"message", "type", "param", "code"}


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
