"""Files of exports: rows become bytes, and a file that broke off is gone on with where that can be."""

import asyncio
import fcntl
import hashlib
import importlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol

from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.usage import event_rows, focus
from loraplex_platform.usage.repository import Cursor
from loraplex_platform.usage.tables import csv_header, csv_rows, json_lines

Kind = Literal["events", "focus", "focus-1.3"]
Format = Literal["jsonl", "csv", "parquet"]
LOOK_AGAIN_S = 0.05
Rows = Sequence[Mapping[str, Any]]


class Sink(Protocol):
    """Takes rows; `size` is how many bytes of the file are whole rows (0: it cannot be told)."""

    size: int

    def write(self, rows: Rows) -> object: ...


@dataclass(slots=True)
class Tally:
    """What the manifest says of the rows."""

    columns: tuple[str, ...]
    rows: int = 0
    sums: dict[str, Decimal] = field(default_factory=dict)
    price_books: set[str] = field(default_factory=set)

    def add(self, rows: Rows) -> None:
        self.rows += len(rows)
        for column in self.columns:
            amounts = (Decimal(str(row[column])) for row in rows)
            self.sums[column] = sum(amounts, self.sums.get(column, Decimal(0)))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a file is whole: what its next row comes after, its bytes, and what they hold."""

    cursor: Cursor
    num_bytes: int
    rows: int
    sums: dict[str, str]
    price_books: list[str]

    def tally(self, columns: tuple[str, ...]) -> Tally:
        sums = {column: Decimal(text) for column, text in self.sums.items()}
        return Tally(columns, self.rows, sums, set(self.price_books))


class PartFile:
    """A file in the making: one process at a time, and the next one finds how far it came."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f".{path.name}.part")
        self._lock = path.with_name(f".{path.name}.lock")
        self._journal = path.with_name(f".{path.name}.progress")

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Waits while somebody else writes it."""
        fd = os.open(self._lock, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            while not _has_locked(fd):  # noqa: ASYNC110 (perhaps another process)
                await asyncio.sleep(LOOK_AGAIN_S)
            self.path.touch()
            yield
        finally:
            os.close(fd)

    def progress(self) -> Progress | None:
        """What an earlier process left; None where there is nothing to go on with."""
        try:
            told = json.loads(self._journal.read_text())
        except FileNotFoundError:
            return None
        moment, request_id = told.pop("cursor")
        progress = Progress(cursor=(datetime.fromisoformat(moment), request_id), **told)
        return progress if self.path.stat().st_size >= progress.num_bytes else None

    def note(self, cursor: Cursor, size: int, tally: Tally) -> None:
        told = {
            "cursor": [cursor[0].isoformat(), cursor[1]],
            "num_bytes": size,
            "rows": tally.rows,
            "sums": {column: f"{total:f}" for column, total in tally.sums.items()},
            "price_books": sorted(tally.price_books),
        }
        new = self._journal.with_suffix(".new")
        new.write_text(json.dumps(told))
        new.rename(self._journal)

    def forget_progress(self) -> None:
        self._journal.unlink(missing_ok=True)

    def finish(self, path: Path) -> None:
        self.forget_progress()
        self.path.rename(path)


def _has_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class BytesFile:
    """Rows through a function that makes bytes of them; goes on where `size` says."""

    def __init__(self, path: Path, size: int, columns: Mapping[str, str], format: Format) -> None:
        self._names = tuple(columns)
        self._numbers = frozenset(name for name, kind in columns.items() if kind != "text")
        self._is_csv = format == "csv"
        self._file = path.open("r+b")
        self._file.truncate(size)
        self._file.seek(size)
        if not size and self._is_csv:
            self._file.write(csv_header(self._names))
        self.size = self._file.tell()

    def __enter__(self) -> "BytesFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, rows: Rows) -> None:
        is_csv = self._is_csv
        self._file.write(csv_rows(self._names, self._numbers, rows) if is_csv else json_lines(rows))
        self._file.flush()
        self.size = self._file.tell()


def open_sink(
    path: Path, kind: Kind, format: Format, size: int = 0
) -> AbstractContextManager[Sink]:
    columns: Mapping[str, str] = event_rows.COLUMNS
    if kind != "events":
        names = focus.columns_of(kind.removeprefix("focus-"))
        columns = {name: "number" if name in focus.NUMBERS else "text" for name in names}
    if format != "parquet":
        return BytesFile(path, size, columns, format)
    try:  # pyarrow is an optional extra, and large: it is loaded when a file asks for it
        parquet = importlib.import_module("loraplex_platform.usage.parquet")
    except ModuleNotFoundError as error:
        raise InvalidRequest("Parquet needs the extra: pip install 'loraplex[export]'") from error
    sink: AbstractContextManager[Sink] = parquet.ParquetFile(path, columns)
    return sink


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
