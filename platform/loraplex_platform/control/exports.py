"""All of a tenant's data in one .tar.gz, for whoever takes it away."""

import asyncio
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, NamedTuple

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_adapters.blobs import BlobStore
from loraplex_adapters.canonical import CANONICAL_NAME
from loraplex_adapters.errors import UnknownVersion
from loraplex_adapters.store import AdapterStore
from loraplex_platform.audit.trail import as_json, note
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.base import Base
from loraplex_platform.db.content import rows_of_tenant
from loraplex_platform.db.database import Database
from loraplex_platform.files.models import key_of
from loraplex_platform.files.repository import FileRepository
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import NotFound
from loraplex_platform.kit.principal import Actor
from loraplex_platform.tenants.models import Tenant

LEFT_OUT = frozenset(  # of use to nobody else, or for the tenant's own eyes
    {
        "batch_line",
        "latency_minute",
        "login_session",
        "one_time_link",
        "stored_prompt",
        "usage_minute",
        "webhook_delivery",
    }
)


class Contents(NamedTuple):
    """Names in the archive, and where their bytes lie."""

    files: list[str]
    adapters: list[str]


class TenantExportService:
    def __init__(
        self, database: Database, blobs: BlobStore, adapters: AdapterStore, clock: Clock
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._adapters = adapters
        self._clock = clock

    async def make(self, tenant: Tenant, by: Actor) -> Path:
        """A temporary file, the caller's to remove; once it closes, what was kept of it."""
        is_kept = await asyncio.to_thread(self._blobs.exists, _key(tenant.id))
        if not is_kept and tenant.closed_at is not None:
            raise NotFound("the tenant's last export is no longer kept")
        if is_kept:
            path = await asyncio.to_thread(self._kept, tenant.id)
        else:
            path = await self._write(tenant.id)
        async with self._database.unit_of_work() as session:
            note(session, tenant, "exported", by, self._clock)
        return path

    async def keep(self, tenant_id: str) -> None:
        """The last export of a tenant that closes, written once.

        Who erases has stored one before: what two processes write at once is complete in both.
        """
        if await asyncio.to_thread(self._blobs.exists, _key(tenant_id)):
            return
        path = await self._write(tenant_id)
        try:
            await asyncio.to_thread(self._store, tenant_id, path)
        finally:
            await asyncio.to_thread(path.unlink)

    def forget(self, tenant_id: str) -> None:
        """Blocks; does nothing when it is gone."""
        self._blobs.delete(_key(tenant_id))

    async def _write(self, tenant_id: str) -> Path:
        """What is read goes to files first: no transaction waits for the packing."""
        descriptor, name = tempfile.mkstemp(suffix=".tar.gz")
        os.close(descriptor)
        path = Path(name)
        try:
            with tempfile.TemporaryDirectory() as folder:
                rows = Path(folder)
                async with self._database.reading() as session:
                    for table in exported_tables():
                        with (rows / f"{table.name}.jsonl").open("wb") as lines:
                            await _write_rows(lines, session, table, tenant_id)
                    contents = await _contents(session, tenant_id)
                await asyncio.to_thread(self._pack, path, rows, contents)
        except BaseException:
            await asyncio.to_thread(path.unlink)
            raise
        return path

    def _pack(self, path: Path, rows: Path, contents: Contents) -> None:
        with tarfile.open(path, "w:gz") as tar:
            for member in sorted(rows.iterdir()):
                if member.stat().st_size:
                    with member.open("rb") as lines:
                        _add(tar, member.name, lines)
            self._add_contents(tar, contents)

    def _add_contents(self, tar: tarfile.TarFile, contents: Contents) -> None:
        for file_id in contents.files:
            try:
                stream = self._blobs.open(key_of(file_id))
            except FileNotFoundError:
                continue  # it was deleted meanwhile
            with closing(stream):
                _add(tar, f"files/{file_id}", stream)
        for version in contents.adapters:
            try:
                folder = self._adapters.path(version)
            except UnknownVersion:
                continue
            with (folder / CANONICAL_NAME).open("rb") as weights:
                _add(tar, f"adapters/{version}.safetensors", weights)

    def _store(self, tenant_id: str, path: Path) -> None:
        if self._blobs.exists(_key(tenant_id)):
            return
        with path.open("rb") as archive:
            self._blobs.write(_key(tenant_id), _chunks(archive))

    def _kept(self, tenant_id: str) -> Path:
        stream = self._blobs.open(_key(tenant_id))
        descriptor, name = tempfile.mkstemp(suffix=".tar.gz")
        with closing(stream), os.fdopen(descriptor, "wb") as target:
            target.writelines(_chunks(stream))
        return Path(name)


def exported_tables() -> list[Table]:
    """Every table with rows of tenants, but those that are left out on purpose."""
    return [
        table
        for table in Base.metadata.sorted_tables
        if ("tenant_id" in table.c or table.name == "tenant") and table.name not in LEFT_OUT
    ]


async def _write_rows(
    lines: IO[bytes], session: AsyncSession, table: Table, tenant_id: str
) -> None:
    async for row in rows_of_tenant(session, table, tenant_id):
        facts = {name: as_json(value) for name, value in row.items()}
        lines.write(json.dumps(facts, ensure_ascii=False).encode() + b"\n")


async def _contents(session: AsyncSession, tenant_id: str) -> Contents:
    files = await FileRepository(session).living_of_tenant(tenant_id)
    adapters = await AdapterRepository(session).all_living_of_tenant(tenant_id)
    return Contents([file.id for file in files], sorted({adapter.version for adapter in adapters}))


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size = content.seek(0, os.SEEK_END)
    content.seek(0)
    tar.addfile(member, content)


def _chunks(content: IO[bytes]) -> Iterator[bytes]:
    while chunk := content.read(1 << 20):
        yield chunk


def _key(tenant_id: str) -> str:
    return f"closed/{tenant_id}.tar.gz"
