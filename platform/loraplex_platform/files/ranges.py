"""One byte range of a file, as `Range: bytes=…` asks for it (RFC 9110)."""

import re
from pathlib import Path
from typing import NamedTuple

from fastapi.responses import FileResponse
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from loraplex_platform.kit.errors import RangeNotSatisfiable

FORM = re.compile(r"bytes=(\d*)-(\d*)")


class ByteRange(NamedTuple):
    start: int
    end: int  # exclusive

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


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


class Download(FileResponse):
    """A file, or one range of a file that has an ETag; a wrong range is an error like all others."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        part = self._asked_for(Headers(scope=scope))
        headers = [h for h in scope["headers"] if h[0] not in (b"range", b"if-range")]
        if part is not None:
            headers.append((b"range", f"bytes={part.start}-{part.end - 1}".encode()))
        await super().__call__({**scope, "headers": headers}, receive, send)

    def _asked_for(self, headers: Headers) -> ByteRange | None:
        etag = self.headers.get("etag")
        if etag is None or headers.get("if-range", etag) != etag:
            return None
        return parse_range(headers.get("range"), Path(self.path).stat().st_size)
