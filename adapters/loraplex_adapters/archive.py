"""An adapter as one zip or tar file: its own files are copied out, nothing else is ever written."""

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

from loraplex_adapters.errors import (
    AdapterTooLarge,
    BadArchive,
    MissingFile,
    PickleRefused,
    UnsafePath,
)
from loraplex_adapters.folder import (
    CONFIG_NAME,
    MAX_CONFIG_BYTES,
    PICKLE_SUFFIXES,
    TOKENIZER_LIMITS,
    WEIGHTS_NAME,
)

MAX_ENTRIES = 1000
CHUNK_BYTES = 1 << 20
BESIDES_BYTES = 64 << 20  # what may lie in a tar beside them
NEEDED = (CONFIG_NAME, WEIGHTS_NAME)
MAX_READ_BYTES = 4 << 20  # of one piece: a tar's own headers are far smaller
COMPRESSIONS: dict[bytes, Callable[[BinaryIO], IO[bytes]]] = {
    b"\x1f\x8b": gzip.open,  # type: ignore[dict-item]  # typeshed's GzipFile is no IO[bytes]
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    NotImplementedError,  # a zip's compression that zipfile does not know
    RuntimeError,  # a zip with a password
    EOFError,
    ValueError,
)


def unpack(archive: BinaryIO, folder: Path, max_bytes: int) -> None:
    """Put an adapter's files into an empty folder; they may lie in one folder of the archive."""
    limits = {CONFIG_NAME: MAX_CONFIG_BYTES, WEIGHTS_NAME: max_bytes, **TOKENIZER_LIMITS}
    start = archive.read(8)
    archive.seek(0)
    try:
        if start.startswith(b"PK"):
            _unpack_zip(archive, folder, limits)
        else:
            _unpack_tar(_decompressed(archive, start), folder, limits)
    except BROKEN as error:
        raise BadArchive(f"the archive cannot be read: {error}") from error


def copy_limited(source: BinaryIO, target: Path, limit: int) -> None:
    """Write a new file; one that grows over the limit is refused, whatever it claimed to be."""
    num_bytes = 0
    with target.open("xb") as file:
        while chunk := source.read(CHUNK_BYTES):
            num_bytes += len(chunk)
            if num_bytes > limit:
                raise AdapterTooLarge(
                    f"{target.name} has more than {limit} bytes", file=target.name, limit=limit
                )
            file.write(chunk)


class _Bounded(io.RawIOBase):
    """A file that ends with an error after so many bytes, however they were compressed."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self._limit = limit
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise BadArchive("the archive's own headers are too large", limit=MAX_READ_BYTES)
        self._move(size)
        piece = self._file.read(size)
        self._position += len(piece) - size
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or offset < self._position:
            raise BadArchive("the archive's entries are not in order")
        while self._position < offset:
            if not self.read(min(offset - self._position, CHUNK_BYTES)):
                break
        return self._position

    def tell(self) -> int:
        return self._position

    def _move(self, size: int) -> None:
        self._position += size
        if self._position > self._limit:
            raise AdapterTooLarge(
                f"the archive holds more than {self._limit} bytes", limit=self._limit
            )


def _decompressed(archive: BinaryIO, start: bytes) -> IO[bytes]:
    for magic, opened in COMPRESSIONS.items():
        if start.startswith(magic):
            return opened(archive)
    return archive


def _unpack_tar(archive: IO[bytes], folder: Path, limits: dict[str, int]) -> None:
    bounded = _Bounded(archive, sum(limits.values()) + BESIDES_BYTES)
    names: list[str] = []
    with tarfile.open(fileobj=cast(BinaryIO, bounded), mode="r:") as content:
        for entry in content:
            names.append(entry.name)
            _check(entry.name, is_link=entry.issparse() or not (entry.isreg() or entry.isdir()))
            _check_count(names)
            name = Path(entry.name).name
            source = content.extractfile(entry) if entry.isreg() else None
            if source is not None and name in limits:
                if (folder / name).exists():
                    raise BadArchive(f"{name} is in the archive twice", file=name)
                copy_limited(cast(BinaryIO, source), folder / name, limits[name])
    for name in NEEDED:
        if not (folder / name).exists():
            raise _missing(name, names)


def _unpack_zip(archive: BinaryIO, folder: Path, limits: dict[str, int]) -> None:
    with zipfile.ZipFile(archive) as content:
        entries = content.infolist()
        _check_count(content.namelist())
        for entry in entries:
            _check(entry.filename, is_link=stat.S_ISLNK(entry.external_attr >> 16))
        for name, limit in limits.items():
            found = _only(entries, name)
            if found is not None:
                with content.open(found) as source:
                    copy_limited(cast(BinaryIO, source), folder / name, limit)


def _check_count(names: Sequence[str]) -> None:
    if len(names) > MAX_ENTRIES:
        raise BadArchive(f"the archive has more than {MAX_ENTRIES} entries", limit=MAX_ENTRIES)


def _check(name: str, *, is_link: bool) -> None:
    parts = name.replace("\\", "/").split("/")
    if ".." in parts or parts[0] == "" or ":" in parts[0]:
        raise UnsafePath(f"{name[:128]!r} leads outside", file=name[:128])
    if is_link:
        raise UnsafePath(f"{name[:128]!r} is a link or a special file", file=name[:128])


def _only(entries: list[zipfile.ZipInfo], name: str) -> zipfile.ZipInfo | None:
    found = [entry for entry in entries if Path(entry.filename).name == name]
    if len(found) > 1:
        raise BadArchive(f"{name} is in the archive {len(found)} times", file=name)
    if not found and name in NEEDED:
        raise _missing(name, [entry.filename for entry in entries])
    return found[0] if found else None


def _missing(name: str, names: Sequence[str]) -> MissingFile | PickleRefused:
    pickles = [each for each in names if each.endswith(PICKLE_SUFFIXES)]
    if pickles and name == WEIGHTS_NAME:
        return PickleRefused(file=pickles[0][:128])
    return MissingFile(f"{name} is missing", file=name)
