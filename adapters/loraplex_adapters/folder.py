"""An adapter's folder as a client gave it: only two regular files of it are ever opened."""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from loraplex_adapters.errors import (
    AdapterTooLarge,
    LfsPointer,
    MissingFile,
    PickleRefused,
    UnsafePath,
)

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
GENERATION_NAME = "generation_config.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
MAX_CONFIG_BYTES = 1 << 20
TOKENIZER_LIMITS = {  # bytes of the files that may lie beside the two
    TOKENIZER_NAME: 64 << 20,
    TOKENIZER_CONFIG_NAME: 8 << 20,
    GENERATION_NAME: MAX_CONFIG_BYTES,
}
LFS_MAGIC = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The two files that make an adapter, open for as long as the folder is, and those of its tokens."""

    config: bytes
    weights: BufferedReader
    weights_bytes: int
    warnings: tuple[str, ...]
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)  # by name; mostly there are none


@contextmanager
def open_adapter(folder: Path, max_bytes: int) -> Iterator[AdapterFiles]:
    """Open a folder's config and weights; what lies beside them is refused or ignored, never read."""
    names = _entries(folder)
    pickles = sorted(name for name in names if name.endswith(PICKLE_SUFFIXES))
    if WEIGHTS_NAME not in names and pickles:
        raise PickleRefused(file=pickles[0])
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        if name not in names:
            raise MissingFile(f"{name} is missing", file=name)
    config = _read_small(folder / CONFIG_NAME, MAX_CONFIG_BYTES)
    tokenizer = {
        name: _read_small(folder / name, limit)
        for name, limit in TOKENIZER_LIMITS.items()
        if {name, TOKENIZER_NAME} <= names
    }
    with open_regular(folder / WEIGHTS_NAME) as weights:
        size = os.fstat(weights.fileno()).st_size
        if size > max_bytes:
            raise AdapterTooLarge(
                f"{WEIGHTS_NAME} has {size} bytes, more than {max_bytes}",
                file=WEIGHTS_NAME,
                num_bytes=size,
                limit=max_bytes,
            )
        ignored = tuple(f"{name} is ignored" for name in pickles)
        yield AdapterFiles(config, weights, size, ignored, tokenizer)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a link or a special file is refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MissingFile(f"{path.name} is missing", file=path.name) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafePath(f"{path.name} is not a regular file", file=path.name)
    return open(descriptor, "rb")


def _read_small(path: Path, limit: int) -> bytes:
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise AdapterTooLarge(
            f"{path.name} has more than {limit} bytes", file=path.name, limit=limit
        )
    if content.startswith(LFS_MAGIC):
        raise LfsPointer(file=path.name)
    return content


def _entries(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise MissingFile(f"{folder.name} is not a folder", file=folder.name)
    with os.scandir(folder) as entries:
        names = set()
        for entry in entries:
            if entry.is_symlink():
                raise UnsafePath(f"{entry.name} is a symbolic link", file=entry.name)
            names.add(entry.name)
    return names
