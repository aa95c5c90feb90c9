"""Optimistic concurrency: a change says which revision it was made on."""

from typing import Protocol

from loraplex_platform.kit.errors import PreconditionFailed


class HasRevision(Protocol):
    @property
    def revision(self) -> int: ...


def check_revision(row: HasRevision | None, expected: int | None) -> None:
    """None expected: the caller does not mind what it overwrites."""
    if expected is not None and (row is None or row.revision != expected):
        raise PreconditionFailed
