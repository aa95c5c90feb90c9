"""What is asked of a database while a test looks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Engine, event


class Asked(NamedTuple):
    """A statement and what it was asked with."""

    statement: str
    values: Any


@contextmanager
def asking() -> Iterator[list[Asked]]:
    asked: list[Asked] = []

    def note(_: object, __: object, statement: str, values: Any, *rest: object) -> None:
        if statement.startswith("SELECT"):  # once a minute, it is noted that somebody is at work
            asked.append(Asked(statement, values))

    event.listen(Engine, "before_cursor_execute", note)
    yield asked
    event.remove(Engine, "before_cursor_execute", note)
