"""One byte range of a file, as `Range: bytes=…` asks for it (RFC 9110)."""

import re
from typing import NamedTuple

FORM = re.compile(r"bytes=(\d*)-(\d*)")


class ByteRange(NamedTuple):
    start: int
    end: int  # exclusive

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


class RangeNotSatisfiable(Exception):
    """The range lies outside of the file; carries the file's size."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"the file has {num_bytes} bytes")
        self.num_bytes = num_bytes


def parse_range(header: str | None, num_bytes: int) -> ByteRange | None:
    """None: the whole file, also when the header is not one that we understand."""
    match = FORM.fullmatch((header or "").replace(" ", ""))
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:  # the last so many bytes
        found = ByteRange(max(0, num_bytes - int(last)), num_bytes)
    else:
        found = ByteRange(int(first), min(int(last) + 1, num_bytes) if last else num_bytes)
    if found.num_bytes <= 0:
        raise RangeNotSatisfiable(num_bytes)
    return found
