"""The safetensors header, read and distrusted: no tensor is touched, no length is believed."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import NamedTuple

from loraplex_adapters.errors import (
    BadHeader,
    BadTensorDtype,
    HeaderTooLong,
    LfsPointer,
    NotSafetensors,
    OverlappingTensors,
    PickleRefused,
    TruncatedFile,
    UnsafePath,
)
from loraplex_adapters.folder import LFS_MAGIC

LORA_DTYPES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}  # bytes an element
MAX_HEADER_BYTES = 16 << 20  # 128 experts x 48 layers x 3 projections need 6 MB
MAX_NAME_LENGTH = 512
PICKLE_MAGICS = (b"\x80", b"PK\x03\x04")  # a bare pickle, and torch.save's zip


class TensorInfo(NamedTuple):
    """Where a tensor lies: `start` counts from the file's first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says of itself; tensors in the order of their bytes."""

    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]
    data_start: int


def read_header(
    file: BufferedReader, file_bytes: int, dtypes: Mapping[str, int] = LORA_DTYPES
) -> Header:
    """The header of an open file, which is left positioned at its data."""
    start = file.read(len(LFS_MAGIC))
    _check_magic(start)
    header_bytes = int.from_bytes(start[:8], "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise HeaderTooLong(
            f"the header claims {header_bytes} bytes",
            num_bytes=header_bytes,
            limit=MAX_HEADER_BYTES,
        )
    data_start = 8 + header_bytes
    if data_start > file_bytes:
        raise TruncatedFile(
            "the file ends inside its header", expected=data_start, found=file_bytes
        )
    file.seek(8)
    content = _parse_json(file.read(header_bytes))
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BadHeader("__metadata__ is not an object of strings")
    tensors = [_tensor(name, entry, data_start, dtypes) for name, entry in content.items()]
    tensors.sort(key=lambda t: (t.start, t.num_bytes))
    _check_extents(tensors, data_start, file_bytes)
    return Header(tuple(tensors), metadata, data_start)


def _check_magic(start: bytes) -> None:
    if start.startswith(LFS_MAGIC):
        raise LfsPointer(file="adapter_model.safetensors")
    if start.startswith(PICKLE_MAGICS) and start[8:9] != b"{":
        raise PickleRefused(file="adapter_model.safetensors")
    if len(start) >= 8 and all(32 <= byte < 127 for byte in start[:8]):
        raise NotSafetensors("the file is text")
    if len(start) < 9:
        raise TruncatedFile("the file ends inside its header", found=len(start))
    if start[8:9] != b"{":
        raise NotSafetensors("the header is not a JSON object")


def _parse_json(raw: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise BadHeader("a name occurs twice in the header")
        return result

    try:
        content = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"the header is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadHeader("the header is not a JSON object")
    return content


def _tensor(name: str, entry: object, data_start: int, dtypes: Mapping[str, int]) -> TensorInfo:
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise BadHeader("a tensor's name is too long or not printable", tensor=name[:64])
    if "/" in name or "\\" in name or ".." in name:
        raise UnsafePath(f"the tensor name {name!r} looks like a path", tensor=name)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadHeader(f"the entry of {name} is malformed", tensor=name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _are_lengths(shape) or not _are_lengths(offsets) or len(offsets) != 2:
        raise BadHeader(f"shape or offsets of {name} are malformed", tensor=name)
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise BadTensorDtype(f"{name} is {dtype}", tensor=name, dtype=dtype, allowed=list(dtypes))
    begin, end = offsets
    if end - begin != math.prod(shape) * dtypes[dtype]:
        raise BadHeader(f"the bytes of {name} do not fit its shape", tensor=name)
    return TensorInfo(name, dtype, tuple(shape), data_start + begin, end - begin)


def _are_lengths(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def _check_extents(tensors: list[TensorInfo], data_start: int, file_bytes: int) -> None:
    """The tensors cover the data without overlap or hole."""
    position = data_start
    for tensor in tensors:
        if tensor.start != position:
            raise OverlappingTensors(
                f"{tensor.name} does not begin where the tensor before it ends",
                tensor=tensor.name,
                expected=position - data_start,
                found=tensor.start - data_start,
            )
        position += tensor.num_bytes
    if position > file_bytes:
        raise TruncatedFile(
            f"{position - file_bytes} bytes are missing", expected=position, found=file_bytes
        )
    if position < file_bytes:
        raise BadHeader(
            f"{file_bytes - position} bytes belong to no tensor",
            expected=position,
            found=file_bytes,
        )
