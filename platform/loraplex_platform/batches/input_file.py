"""The input file, line by line: what each line asks for, or what is wrong with it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from loraplex_platform.kit.json_depth import is_too_deep

MAX_LINES = 50_000
MAX_LINE_BYTES = 10 * 1024 * 1024  # what a request of its own may have
MAX_CUSTOM_ID = 512  # characters
BOM = b"\xef\xbb\xbf"
SORT_KEY_BYTES = 128
BYTES_PER_TOKEN = 4  # the estimate for what is enqueued; usage is counted by the engine


@dataclass(frozen=True, slots=True)
class InputLine:
    """One request, and where it stands in the file."""

    line_no: int  # from 1
    offset: int
    num_bytes: int
    custom_id: str
    model: str
    sort_key: bytes
    tokens: int  # estimated, of the prompt


class LineError(NamedTuple):
    """What is wrong with a line; with line None, with the file."""

    code: str
    message: str
    param: str | None
    line: int | None

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


def read_lines(file: BinaryIO, endpoint: str) -> Iterator[InputLine | LineError]:
    """Reads in constant memory; blank lines do not count, but have a number."""
    offset = num_lines = line_no = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        line_no += 1
        start, offset = offset, offset + len(raw)
        if len(raw) > MAX_LINE_BYTES:
            offset += _skip_line(file, raw)
            num_lines += 1
            yield LineError(
                "line_too_large", f"This line exceeds {MAX_LINE_BYTES} bytes.", None, line_no
            )
            continue
        if start == 0 and raw.startswith(BOM):
            raw, start = raw[len(BOM) :], len(BOM)
        if not raw.strip():
            continue
        num_lines += 1
        if num_lines > MAX_LINES:
            yield LineError(
                "too_many_tasks", f"A batch has at most {MAX_LINES} requests.", None, line_no
            )
            return
        yield _parse(raw, line_no, start, endpoint)
    if num_lines == 0:
        yield LineError("empty_file", "The input file has no requests.", "input_file_id", None)


def body_of(raw: bytes) -> dict[str, Any]:
    """The body of a line that was found to be right."""
    body: dict[str, Any] = json.loads(raw)["body"]
    return body


def _skip_line(file: BinaryIO, chunk: bytes) -> int:
    """Read on to the end of the line; returns how many bytes that took."""
    skipped = 0
    while chunk and not chunk.endswith(b"\n"):
        chunk = file.readline(MAX_LINE_BYTES)
        skipped += len(chunk)
    return skipped


def _parse(raw: bytes, line_no: int, offset: int, endpoint: str) -> InputLine | LineError:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return LineError("invalid_encoding", "This line is not valid UTF-8.", None, line_no)
    try:
        line = None if is_too_deep(raw) else json.loads(text, parse_constant=_no_constant)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        return LineError(
            "invalid_json_line", "This line is not parseable as valid JSON.", None, line_no
        )
    wrong = _fault_of(line, endpoint)
    if wrong is not None:
        return wrong._replace(line=line_no)
    body = line["body"]
    key = _sort_key(body)
    return InputLine(
        line_no, offset, len(raw), line["custom_id"], body["model"], key, _tokens(body)
    )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _fault_of(line: dict[str, Any], endpoint: str) -> LineError | None:
    """The first thing that is wrong with a line's fields."""
    for name, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
        if name not in line:
            return _missing(name)
        if not isinstance(line[name], kind):
            return _wrong("invalid_type", f"'{name}' has the wrong type.", name)
    if not _is_storable(line["custom_id"]):
        return _wrong(
            "invalid_custom_id",
            f"'custom_id' must be 1 to {MAX_CUSTOM_ID} characters of valid Unicode.",
            "custom_id",
        )
    if line["method"] != "POST":
        return _wrong("invalid_method", "The method of a request must be POST.", "method")
    if line["url"] != endpoint:
        message = "The URL provided for this request does not match the batch endpoint."
        return _wrong("url_mismatch", message, "url")
    body = line["body"]
    if "model" not in body:
        return _missing("body.model")
    if not isinstance(body["model"], str):
        return _wrong("invalid_type", "'body.model' must be a string.", "body.model")
    if body.get("stream"):
        return _wrong("invalid_stream", "A request of a batch cannot be streamed.", "body.stream")
    return None


def _missing(name: str) -> LineError:
    return LineError("missing_required_parameter", f"'{name}' is required.", name, None)


def _wrong(code: str, message: str, param: str) -> LineError:
    return LineError(code, message, param, None)


def _is_storable(custom_id: str) -> bool:
    """Lone surrogates have no UTF-8, and Postgres keeps no NUL."""
    is_text = "\0" not in custom_id and not any("\ud800" <= c <= "\udfff" for c in custom_id)
    return 1 <= len(custom_id) <= MAX_CUSTOM_ID and is_text


def _sort_key(body: dict[str, Any]) -> bytes:
    """Lines of one model stand together, and within it those that begin alike."""
    model = str(body["model"]).encode(errors="backslashreplace")[:64]
    start = _prompt_text(body)[: SORT_KEY_BYTES * 2].encode(errors="backslashreplace")
    return model + b"\0" + start[:SORT_KEY_BYTES]


def _prompt_text(body: dict[str, Any]) -> str:
    if "messages" not in body:
        return json.dumps(body.get("prompt"))
    messages = body["messages"]
    listed = messages if isinstance(messages, list) else []
    contents = [m.get("content") for m in listed if isinstance(m, dict)]
    return "\n".join(c if isinstance(c, str) else json.dumps(c) for c in contents)


def _tokens(body: dict[str, Any]) -> int:
    return len(_prompt_text(body).encode(errors="backslashreplace")) // BYTES_PER_TOKEN + 1
