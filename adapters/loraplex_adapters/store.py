"""Versions of adapters on disk, named by the sha256 of their canonical content.

The canonical content of an adapter is one safetensors file: tensors named after the base model's
modules and parts, in order, with the scales of those with LoRA and the added tokens in the
metadata. `sha256sum` of that file is the version.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_adapters.canonical import (
    CANONICAL_NAME,
    canonical_header,
    read_added,
    read_metadata,
)
from loraplex_adapters.errors import CorruptVersion, NonFiniteTensor, TruncatedFile, UnknownVersion
from loraplex_adapters.finite import is_finite
from loraplex_adapters.folder import open_adapter, open_regular
from loraplex_adapters.fused_experts import with_single_experts
from loraplex_adapters.header import TensorInfo
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits, Manifest, judge
from loraplex_adapters.report import LoadReport

REPORT_NAME = "report.json"
CHUNK_BYTES = 1 << 20
VERSION = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """A version that lies in the store, and what was said when it was judged."""

    version: str
    report: LoadReport


class AdapterStore:
    """A folder of versions. Several processes may use it at once: a version appears whole or not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / ".incoming"  # on the same file system, so that a rename is atomic
        self._incoming.mkdir(parents=True, exist_ok=True)

    def put(self, folder: Path, *, base: BaseModel, limits: Limits) -> StoredAdapter:
        """Judge a client's folder and keep its canonical content; putting it twice is one version."""
        with self.draft() as draft:
            with (
                open_adapter(folder, limits.max_bytes) as given,
                with_single_experts(given, base, draft) as files,
            ):
                manifest = judge(files, base, limits)
                version = _write_canonical(draft / CANONICAL_NAME, files.weights, manifest)
            _write_synced(draft / REPORT_NAME, json.dumps(manifest.report.to_json()).encode())
            self._publish(draft, version)
        return StoredAdapter(version, manifest.report)

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """An empty folder beside the versions; what is still there at the end goes."""
        draft = self._incoming / uuid.uuid4().hex
        draft.mkdir()
        try:
            yield draft
        finally:
            if draft.exists():
                shutil.rmtree(draft)

    def sweep_drafts(self, older_than_s: float, now_s: float) -> int:
        """Remove drafts whose process died; both times in seconds of Unix; how many there were."""
        dead = [d for d in self._incoming.iterdir() if now_s - d.stat().st_mtime > older_than_s]
        for draft in dead:
            shutil.rmtree(draft, ignore_errors=True)  # its owner may be removing it too
        return len(dead)

    def is_older(self, version: str, seconds: float, now_s: float) -> bool:
        """Whether a version was last put so long ago."""
        return now_s - self.path(version).stat().st_mtime > seconds

    def path(self, version: str) -> Path:
        """The folder of a version, which is there."""
        folder = self._folder(version)
        if not folder.is_dir():
            raise UnknownVersion(version=version)
        return folder

    def report(self, version: str) -> LoadReport:
        """What was said of a version when it was first put."""
        return LoadReport.from_json(json.loads((self.path(version) / REPORT_NAME).read_bytes()))

    def added_tokens(self, version: str) -> AddedTokens | None:
        """What a version adds to the vocabulary, as its file says, unverified."""
        with open_regular(self.path(version) / CANONICAL_NAME) as file:
            return read_added(read_metadata(file, version), version)

    def verify(self, version: str) -> None:
        """Read a version whole and compare it with its name."""
        file = self.path(version) / CANONICAL_NAME
        if not file.is_file():
            raise CorruptVersion("the version's file is gone", version=version)
        with open_regular(file) as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != version:
            raise CorruptVersion(version=version, found=found)

    def versions(self) -> Iterator[str]:
        """All versions, in order."""
        for folder in sorted(self.root.glob("[0-9a-f][0-9a-f]/*")):
            if VERSION.fullmatch(folder.name):
                yield folder.name

    def delete(self, version: str) -> None:
        """Forget a version; whoever has it open reads on undisturbed."""
        trash = self._incoming / uuid.uuid4().hex
        self.path(version).rename(trash)
        shutil.rmtree(trash)

    def _folder(self, version: str) -> Path:
        if not VERSION.fullmatch(version):
            raise UnknownVersion(version=version[:64])
        return self.root / version[:2] / version

    def _publish(self, draft: Path, version: str) -> None:
        target = self._folder(version)
        target.parent.mkdir(exist_ok=True)
        if target.exists():
            try:
                self.verify(version)
                os.utime(target)  # somebody has put it just now
                return
            except CorruptVersion:
                self.delete(version)
        try:
            draft.rename(target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise  # else another process has just put the same content
        _sync_folder(target)
        _sync_folder(target.parent)


def _write_canonical(target: Path, source: BufferedReader, manifest: Manifest) -> str:
    """Copy the tensors in canonical order, in chunks, and return the sha256 of what was written."""
    digest = hashlib.sha256()
    with target.open("xb") as file:
        header = canonical_header(manifest)
        file.write(header)
        digest.update(header)
        for module in manifest.modules:
            for tensor in module.tensors.values():
                for chunk in _chunks(source, tensor):
                    file.write(chunk)
                    digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _chunks(source: BufferedReader, tensor: TensorInfo) -> Iterator[bytes]:
    source.seek(tensor.start)
    for start in range(0, tensor.num_bytes, CHUNK_BYTES):
        wanted = min(CHUNK_BYTES, tensor.num_bytes - start)
        chunk = source.read(wanted)
        if len(chunk) < wanted:
            raise TruncatedFile("the file shrank while it was read", tensor=tensor.name)
        if not is_finite(chunk, tensor.dtype):
            raise NonFiniteTensor(f"{tensor.name} holds NaN or infinity", tensor=tensor.name)
        yield chunk


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
