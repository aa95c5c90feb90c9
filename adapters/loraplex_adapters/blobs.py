"""Blobs by key, in a folder or at any fsspec URL: a blob appears whole or not at all."""

import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

INCOMING = ".incoming"


class BlobStore:
    """Several processes may use it at once; every call blocks. Keys are ours, never a client's."""

    def __init__(self, url: str | Path) -> None:
        self._fs, root = url_to_fs(str(url))
        self._root = root.rstrip("/")
        self._is_local = isinstance(self._fs, LocalFileSystem)
        self._fs.makedirs(f"{self._root}/{INCOMING}", exist_ok=True)

    def write(self, key: str, chunks: Iterable[bytes]) -> int:
        """Put the chunks at this key, over what was there; returns the number of bytes."""
        target, draft = self._path(key), f"{self._root}/{INCOMING}/{uuid.uuid4().hex}"
        num_bytes = 0
        try:
            with self._fs.open(draft, "wb") as file:
                for chunk in chunks:
                    num_bytes += file.write(chunk)
                if self._is_local:
                    file.flush()
                    os.fsync(file.fileno())
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.mv(draft, target)  # within one file system: a rename
        except BaseException:
            with suppress(FileNotFoundError):
                self._fs.rm_file(draft)
            raise
        return num_bytes

    def open(self, key: str) -> BinaryIO:
        """A seekable stream of the blob; raises FileNotFoundError."""
        return cast(BinaryIO, self._fs.open(self._path(key), "rb"))

    def exists(self, key: str) -> bool:
        return bool(self._fs.exists(self._path(key)))

    def delete(self, key: str) -> None:
        """Does nothing when it is gone; whoever has it open on a local disk reads on."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    def _path(self, key: str) -> str:
        assert ".." not in key, key
        assert not key.startswith(("/", ".")), key
        return f"{self._root}/{key}"
