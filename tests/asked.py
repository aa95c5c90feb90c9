"""What is asked of a database while a test looks."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
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


def steps_of(asked: list[Asked], database: Path) -> int:
    """What SQLite does for these statements, in steps of its machine."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        connection.set_progress_handler(count, 100)
        for statement, values in asked:
            connection.execute(statement, values).fetchall()
    return steps
