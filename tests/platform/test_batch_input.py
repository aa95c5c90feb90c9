"""Input files: what each malformed one is told, and which odd ones are fine."""

import inspect
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from tests.platform.batch_stand import URL, jsonl, line, run
from tests.platform_stand import BASE, Served

from loraplex_platform.auth.service import KeyService
from loraplex_platform.batches import closing, input_file, intake, outcomes
from loraplex_platform.batches.input_file import InputLine, LineError, read_lines

A, B = json.dumps(line("a")), json.dumps(line("b"))


@pytest.fixture
def app(make_app: Callable[..., FastAPI]) -> FastAPI:
    return make_app(batch_tick_s=0.1)


def faults(content: bytes) -> list[tuple[str, str | None, int | None]]:
    found = [each for each in read_lines(io.BytesIO(content), URL) if isinstance(each, LineError)]
    return [(each.code, each.param, each.line) for each in found]


def without(name: str) -> str:
    return json.dumps({k: v for k, v in line("b").items() if k != name})


def with_(**changes: object) -> str:
    return json.dumps(line("b") | changes)


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[1]", "invalid_json_line", None),
        ('{"a": NaN}', "invalid_json_line", None),
        ("[" * 100_000, "invalid_json_line", None),
        (without("custom_id"), "missing_required_parameter", "custom_id"),
        (without("method"), "missing_required_parameter", "method"),
        (without("url"), "missing_required_parameter", "url"),
        (without("body"), "missing_required_parameter", "body"),
        (with_(custom_id=7), "invalid_type", "custom_id"),
        (with_(custom_id=""), "invalid_custom_id", "custom_id"),
        (with_(custom_id="a\0"), "invalid_custom_id", "custom_id"),
        (with_(custom_id="\ud800"), "invalid_custom_id", "custom_id"),
        (with_(method="GET"), "invalid_method", "method"),
        (with_(url="/v1/completions"), "url_mismatch", "url"),
        (with_(url="/evil" + URL), "url_mismatch", "url"),
        (with_(body={"messages": []}), "missing_required_parameter", "body.model"),
        (with_(body={"model": 1}), "invalid_type", "body.model"),
        (with_(body={"model": "m", "stream": True}), "invalid_stream", "body.stream"),
    ],
)
def test_a_wrong_line_has_its_own_code_and_number(text: str, code: str, param: str | None) -> None:
    assert faults(f"{A}\n\n{text}\n".encode()) == [(code, param, 3)]


def test_invalid_utf8_is_told_by_line() -> None:
    assert faults(A.encode() + b'\n{"\xff": 1}\n') == [("invalid_encoding", None, 2)]


@pytest.mark.parametrize("content", [b"", b"\n\r\n", b"\xef\xbb\xbf"])
def test_a_file_without_requests_is_empty(content: bytes) -> None:
    assert faults(content) == [("empty_file", "input_file_id", None)]


def test_one_line_too_many_is_told_and_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    assert input_file.MAX_LINES == 50_000
    monkeypatch.setattr(input_file, "MAX_LINES", 50)
    many = "".join(json.dumps(line(str(i))) + "\n" for i in range(50))
    assert faults(many.encode()) == []
    assert faults((many + A + "\n" + B).encode()) == [("too_many_tasks", None, 51)]


def test_a_huge_line_is_told_without_being_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "MAX_LINE_BYTES", 500)
    assert faults(f"{A}\n{'x' * 2000}\n{B}\n".encode()) == [("line_too_large", None, 2)]


@pytest.mark.parametrize(
    "content",
    [
        f"\ufeff{A}\n{B}\n".encode(),
        f"{A}\r\n{B}\r\n".encode(),
        f"{A}\n{B}".encode(),
        f"\n{A}\n\n\n{B}\n\n".encode(),
    ],
    ids=["bom", "crlf", "no final newline", "blank lines"],
)
def test_odd_but_right_files_are_read(content: bytes) -> None:
    lines = list(read_lines(io.BytesIO(content), URL))
    assert [each.custom_id for each in lines if isinstance(each, InputLine)] == ["a", "b"]
    for each in lines:
        assert isinstance(each, InputLine)
        raw = content[each.offset : each.offset + each.num_bytes]
        assert input_file.body_of(raw)["model"] == line("a")["body"]["model"]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_reading_survives_any_bytes_and_numbers_every_line(parts: list[bytes]) -> None:
    content = b"\n".join(parts)
    found = list(read_lines(io.BytesIO(content), URL))
    numbers = [each.line if isinstance(each, LineError) else each.line_no for each in found]
    num_lines = len(io.BytesIO(content).readlines())
    assert all(n is None or 1 <= n <= num_lines for n in numbers)
    assert found


def test_lines_that_begin_alike_have_neighbouring_sort_keys() -> None:
    texts = ["You are kind. One", "Be brief. One", "You are kind. Two", "Be brief. Two"]
    content = jsonl(*(line(str(i), text=text) for i, text in enumerate(texts)))
    lines = [each for each in read_lines(io.BytesIO(content), URL) if isinstance(each, InputLine)]
    ordered = [each.custom_id for each in sorted(lines, key=lambda each: each.sort_key)]
    assert ordered == ["1", "3", "0", "2"]


@pytest.mark.parametrize(
    ("lines", "code", "number"),
    [
        ((line("a"), line("b"), "{"), "invalid_json_line", 3),
        ((line("a"), line("a")), "duplicate_custom_id", 2),
        ((line("a"), line("b", "nobody's")), "model_not_found", 2),
        ((line("a") | {"url": "/v1/completions"},), "url_mismatch", 1),
    ],
)
async def test_a_batch_with_a_wrong_line_fails_with_its_code_and_runs_nothing(
    served: Served, lines: tuple[dict[str, object] | str, ...], code: str, number: int
) -> None:
    batch = await run(served.client(), jsonl(*lines))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert [(e.code, e.line) for e in batch.errors.data or []] == [(code, number)]
    assert served.engine.requests == []


async def test_another_tenants_adapter_does_not_exist_for_a_line(served: Served) -> None:
    batch = await run(served.client(served.keys.globex), jsonl(line("a", "acme-only")))
    assert batch.errors is not None
    assert [e.code for e in batch.errors.data or []] == ["model_not_found"]


def test_the_page_on_batches_names_every_code() -> None:
    page = (Path(__file__).parents[2] / "deploy" / "docs" / "batches.md").read_text()
    named = set(re.findall(r"`(\w+)`", page))
    sources = [Path(inspect.getfile(module)) for module in (input_file, intake, closing, outcomes)]
    codes = re.compile(r'(?:LineError|_wrong|error_json|failure)\(\s*"(\w+)"')
    raised = {code for source in sources for code in codes.findall(source.read_text())}
    assert len(raised) > 10
    assert raised <= named


async def limited_key(served: Served, models: frozenset[str]) -> str:
    """Another key of acme's project, for these models only."""
    principal = await served.app.state.authenticator.authenticate(served.keys.acme)
    keys: KeyService = served.app.state.keys
    return str(
        await keys.create(
            principal.tenant_id, principal.project_id, values={"allowed_models": sorted(models)}
        )
    )


async def test_a_model_that_the_key_may_not_use_is_told_by_line(served: Served) -> None:
    key = await limited_key(served, frozenset({BASE}))
    batch = await run(served.client(key), jsonl(line("a"), line("b", "support")))
    assert batch.errors is not None
    assert [(e.code, e.line) for e in batch.errors.data or []] == [("model_not_allowed", 2)]
    assert served.engine.requests == []


async def test_errors_are_told_up_to_a_hundred(served: Served) -> None:
    batch = await run(served.client(), jsonl(*["{"] * 150))
    assert batch.errors is not None
    assert [e.line for e in batch.errors.data or []] == list(range(1, 101))
