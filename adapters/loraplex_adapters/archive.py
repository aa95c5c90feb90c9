"""An adapter as one zip file: its two files are copied out, nothing else is ever written."""

import stat
import zipfile
from pathlib import Path
from typing import BinaryIO, cast

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
    WEIGHTS_NAME,
)

MAX_ENTRIES = 1000
CHUNK_BYTES = 1 << 20


def unpack(archive: BinaryIO, folder: Path, max_bytes: int) -> None:
    """Put an adapter's two files into an empty folder; they may lie in one folder of the archive."""
    try:
        with zipfile.ZipFile(archive) as content:
            entries = content.infolist()
            _check(entries)
            for name, limit in ((CONFIG_NAME, MAX_CONFIG_BYTES), (WEIGHTS_NAME, max_bytes)):
                with content.open(_only(entries, name)) as source:
                    copy_limited(cast(BinaryIO, source), folder / name, limit)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
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


def _check(entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise BadArchive(f"the archive has more than {MAX_ENTRIES} entries", limit=MAX_ENTRIES)
    for entry in entries:
        parts = entry.filename.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "" or ":" in parts[0]:
            raise UnsafePath(f"{entry.filename[:128]!r} leads outside", file=entry.filename[:128])
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise UnsafePath(
                f"{entry.filename[:128]!r} is a symbolic link", file=entry.filename[:128]
            )


def _only(entries: list[zipfile.ZipInfo], name: str) -> zipfile.ZipInfo:
    found = [entry for entry in entries if Path(entry.filename).name == name]
    if len(found) > 1:
        raise BadArchive(f"{name} is in the archive {len(found)} times", file=name)
    if not found:
        pickles = [e.filename for e in entries if e.filename.endswith(PICKLE_SUFFIXES)]
        if pickles and name == WEIGHTS_NAME:
            raise PickleRefused(file=pickles[0][:128])
        raise MissingFile(f"{name} is missing", file=name)
    return found[0]
