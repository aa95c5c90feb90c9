"""The durable spool: what a request used is on disk before its end is told to anybody.

A line is safe once `append` returns. The database takes it from there; until it has, the line stays.
Segments of processes that are gone are found by their locks and taken over. Writing a line to the
database twice changes nothing, so nothing needs to be marked, and nothing can be lost in between.
"""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from loraplex_platform.kit.ids import new_id
from loraplex_platform.usage.facts import UsageFacts

log = structlog.get_logger(__name__)
SEGMENT_BYTES = 1 << 20
Line = tuple[bytes, "asyncio.Future[Segment]"]


@dataclass(slots=True, eq=False)
class Segment:
    """One file, held by a lock; it goes when the database has all of its lines."""

    path: Path
    fd: int
    size: int = 0  # bytes that are safe
    open_lines: int = 0  # of which nobody knows yet whether the database has them
    is_stalled: bool = False  # the database did not take a line

    @classmethod
    def create(cls, folder: Path) -> "Segment":
        path = folder / f"{new_id('spool')}.jsonl"
        segment = cls(path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        fcntl.flock(segment.fd, fcntl.LOCK_EX)
        directory = os.open(folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        return segment

    @classmethod
    def adopt(cls, path: Path) -> "Segment | None":
        """A segment whose process is gone; None while it lives."""
        try:
            segment = cls(path, os.open(path, os.O_RDWR))
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(segment.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(segment.fd)
            return None
        segment.size = os.fstat(segment.fd).st_size
        return segment

    def write(self, lines: bytes) -> None:
        """All of it is safe afterwards, or none of it is there."""
        try:
            written = os.pwrite(self.fd, lines, self.size)
            if written < len(lines):
                raise OSError(f"{self.path}: the disk took {written} of {len(lines)} bytes")
            os.fdatasync(self.fd)
        except OSError:
            os.ftruncate(self.fd, self.size)
            raise
        self.size += len(lines)

    def read(self) -> Iterator[UsageFacts]:
        """What a crash left half-written was never promised to anybody, and is skipped."""
        decoder = msgspec.json.Decoder(UsageFacts)
        with open(self.path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    log.warning("spool_line_torn", path=str(self.path), size=len(line))
                    return
                yield decoder.decode(line)

    def empty(self) -> None:
        os.ftruncate(self.fd, 0)
        self.size = 0

    def remove(self) -> None:
        self.path.unlink()
        os.close(self.fd)


class Spool:
    """One process's segments; lines that come together share one fsync."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._current: Segment | None = None
        self._retired: set[Segment] = set()
        self._waiting: list[Line] = []
        self._writing: asyncio.Task[None] | None = None

    async def append(self, facts: UsageFacts) -> Segment:
        """Durable on return; tell the segment what became of the line. Raises OSError."""
        done: asyncio.Future[Segment] = asyncio.get_running_loop().create_future()
        self._waiting.append((msgspec.json.encode(facts) + b"\n", done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await done

    def written(self, segment: Segment) -> None:
        """The database has the line."""
        segment.open_lines -= 1
        if segment.open_lines or segment.is_stalled:
            return
        if segment is self._current:
            segment.empty()
        else:
            self._retired.discard(segment)
            segment.remove()

    def stalled(self, segment: Segment) -> None:
        """The database did not take the line: a later `leftovers` gives it again."""
        segment.open_lines -= 1
        segment.is_stalled = True
        if segment is self._current:
            self._retire()

    def leftovers(self) -> list[Segment]:
        """Segments whose lines the database may lack and nobody else will write."""
        own = [s for s in self._retired if s.is_stalled and not s.open_lines]
        mine = {s.path for s in (*self._retired, self._current) if s is not None}
        foreign = [p for p in sorted(self._folder.glob("spool_*.jsonl")) if p not in mine]
        return own + [s for path in foreign if (s := Segment.adopt(path)) is not None]

    def let_go(self, segment: Segment) -> None:
        """Give back a segment that could not be written this time."""
        if segment not in self._retired:
            os.close(segment.fd)

    def finish(self, segment: Segment) -> None:
        """The database has every line of a leftover."""
        self._retired.discard(segment)
        segment.remove()

    def set_aside(self, facts: UsageFacts) -> None:
        """Keep what the database refused, for a person to look at; blocks."""
        with open(self._folder / "refused.jsonl", "ab") as file:
            file.write(msgspec.json.encode(facts) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """What is not in the database stays on disk for the next process."""
        for segment in self._retired:
            os.close(segment.fd)
        if self._current is not None and self._current.size == 0:
            self._current.remove()
        elif self._current is not None:
            os.close(self._current.fd)
        self._retired, self._current = set(), None

    def _retire(self) -> None:
        assert self._current is not None
        self._retired.add(self._current)
        self._current = None

    async def _write(self) -> None:
        while self._waiting:
            lines, self._waiting = self._waiting, []
            try:
                segment = await self._append(b"".join(line for line, _ in lines), len(lines))
            except OSError as error:
                for _, done in lines:
                    done.set_exception(error)
                continue
            for _, done in lines:
                if done.cancelled():
                    self.stalled(segment)  # whoever waited will not write it
                else:
                    done.set_result(segment)

    async def _append(self, content: bytes, count: int) -> Segment:
        if self._current is not None and self._current.size >= SEGMENT_BYTES:
            self._retire()
        if self._current is None:
            self._current = Segment.create(self._folder)
        segment = self._current
        segment.open_lines += count
        try:
            await asyncio.to_thread(segment.write, content)
        except OSError:
            segment.open_lines -= count
            raise
        return segment
