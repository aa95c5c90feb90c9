"""CSV and JSON Lines, the same bytes for the same rows; text that a spreadsheet would run is defused."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

RUNS = ("=", "+", "-", "@")


def csv_header(columns: Sequence[str]) -> bytes:
    return _csv([columns])


def csv_rows(
    columns: Sequence[str], numbers: frozenset[str], rows: Iterable[Mapping[str, Any]]
) -> bytes:
    """RFC 4180 in UTF-8; None is an empty field, numbers stay numbers."""
    return _csv(
        [[row[name] if name in numbers else defused(row[name]) for name in columns] for row in rows]
    )


def defused(value: object) -> object:
    """Text as it is, unless a spreadsheet would take it for a formula."""
    if not isinstance(value, str) or not value:
        return value
    is_risky = value.startswith(RUNS) or ord(value[0]) < 32
    return f"'{value}" if is_risky else value


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(
        json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for row in rows
    )


def _csv(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()
