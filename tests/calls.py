"""What a test's thread calls while it looks: a cost, or a sequence, that no neighbour changes."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def calling() -> Iterator[list[str]]:
    """The name of every function called, Python's and C's, in turn. Collections of garbage wait."""
    calls: list[str] = []

    def note(frame: FrameType, kind: str, called: Any) -> None:
        if kind == "call":
            calls.append(frame.f_code.co_qualname)
        elif kind == "c_call":
            calls.append(called.__qualname__)

    gc.disable()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()
