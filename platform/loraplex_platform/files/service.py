"""Rules about files: whole or absent, a tenant's own, and gone when nobody reads them any more."""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import BinaryIO, NamedTuple

from loraplex_adapters.blobs import BlobStore
from loraplex_platform.audit.trail import note
from loraplex_platform.db.database import Database
from loraplex_platform.files.models import StoredFile, key_of
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.files.schemas import FileObject, FileQuery, UploadForm
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidRequest, NotFound, TooLarge
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.kit.principal import Actor, Principal, key_actor

CHUNK_BYTES = 256 * 1024
MAX_BYTES = 512 * 1024 * 1024
MAX_BATCH_BYTES = 200 * 1024 * 1024
BATCH_FILE_LIFE = timedelta(days=30)
UNFINISHED_LIFE = timedelta(hours=6)  # the longest that an upload may take
SWEPT_AT_ONCE = 100


class Content(NamedTuple):
    """A file that is open for reading, and how much of it there is."""

    file: StoredFile
    stream: BinaryIO


class FileService:
    def __init__(self, database: Database, blobs: BlobStore, clock: Clock) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock

    async def create(
        self,
        principal: Principal,
        form: UploadForm,
        filename: str,
        content: BinaryIO,
        *,
        by: Actor | None = None,
    ) -> FileObject:
        """Keep what the client sent; it can be seen once it is whole."""
        limit = MAX_BATCH_BYTES if form.purpose == "batch" else MAX_BYTES
        if form.purpose == "batch" and not filename.lower().endswith(".jsonl"):
            raise InvalidRequest(
                "Invalid file format for Batch API. Must be .jsonl", param="file",
                code="invalid_file_format",
            )  # fmt: skip
        now = self._clock.now()
        file = StoredFile(
            id=new_id("file", "-"),
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            filename=_shown(filename),
            purpose=form.purpose,
            num_bytes=0,
            created_at=now,
            expires_at=_expiry(form, now),
            holds=0,
        )
        async with self._database.unit_of_work(principal) as session:
            await FileRepository(session).add(file)
        file.num_bytes = await asyncio.to_thread(
            self._blobs.write, file.key, _limited(content, limit)
        )
        async with self._database.unit_of_work(principal) as session:
            file.ready_at = self._clock.now()
            await FileRepository(session).add(file)
            facts = {"filename": file.filename, "purpose": file.purpose, "bytes": file.num_bytes}
            note(session, file, "created", by or key_actor(principal), self._clock, facts)
        return FileObject.of(file)

    async def list(self, principal: Principal, query: FileQuery) -> Page[FileObject]:
        async with self._database.reading(principal) as session:
            files = await FileRepository(session).page(principal, query)
        return page_of([FileObject.of(file) for file in files], query.limit)

    async def get(self, principal: Principal, file_id: str) -> StoredFile:
        async with self._database.reading(principal) as session:
            file = await FileRepository(session).get(principal, file_id)
        if file is None:
            raise no_such_file(file_id)
        return file

    async def open(self, principal: Principal, file_id: str) -> Content:
        """The file's content; the caller closes the stream."""
        file = await self.get(principal, file_id)
        return Content(file, await asyncio.to_thread(self._blobs.open, file.key))

    async def delete(self, principal: Principal, file_id: str, *, by: Actor | None = None) -> None:
        """It cannot be seen any more; its content goes when no job reads it."""
        async with self._database.unit_of_work(principal) as session:
            file = await FileRepository(session).get(principal, file_id)
            if file is None:
                raise no_such_file(file_id)
            file.deleted_at = self._clock.now()
            note(session, file, "deleted", by or key_actor(principal), self._clock)

    def open_held(self, file_id: str) -> BinaryIO:
        """The content of a file that the caller holds; blocks."""
        return self._blobs.open(key_of(file_id))

    def write(self, file_id: str, chunks: Iterable[bytes]) -> int:
        """A job's output, over that of an earlier try; blocks. `publish` makes it visible."""
        return self._blobs.write(key_of(file_id), chunks)

    async def sweep(self) -> int:
        """Expire what is due and throw away what nobody needs; returns how many files went."""
        now = self._clock.now()
        async with self._database.reading() as session:
            files = FileRepository(session)
            due = await files.disposable(now - UNFINISHED_LIFE, SWEPT_AT_ONCE)
        for file_id in due:
            await asyncio.to_thread(self._blobs.delete, key_of(file_id))
        async with self._database.unit_of_work() as session:
            files = FileRepository(session)
            for file_id in due:
                await files.remove(file_id)
            await files.expire(now)
        return len(due)


def no_such_file(file_id: str, param: str = "id") -> NotFound:
    return NotFound(f"No such File object: {file_id}", param=param)


def _expiry(form: UploadForm, now: datetime) -> datetime | None:
    if form.expires_after is not None:
        return now + timedelta(seconds=form.expires_after.seconds)
    return now + BATCH_FILE_LIFE if form.purpose == "batch" else None


def _shown(filename: str) -> str:
    """The client's name for the file: printable, and not too long."""
    name = "".join(char for char in filename if char.isprintable()).strip()
    return name[-255:] or "file"


def _limited(content: BinaryIO, limit: int) -> Iterator[bytes]:
    num_bytes = 0
    while chunk := content.read(CHUNK_BYTES):
        num_bytes += len(chunk)
        if num_bytes > limit:
            raise TooLarge(f"The file exceeds {limit} bytes.", param="file", code="file_too_large")
        yield chunk
