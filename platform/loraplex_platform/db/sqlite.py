"""A SQLite file behind a thread, to which a statement goes once: each time costs two changes of threads."""

import sqlite3

import aiosqlite
from aiosqlite.context import contextmanager


class Cursor(aiosqlite.Cursor):
    async def close(self) -> None:
        """In the thread, since the statement may be at work there; nobody has to wait for it."""
        self._conn._tx.put_nowait((None, self._cursor.close))


class Connection(aiosqlite.Connection):
    """Makes its cursors in the thread that asks for them."""

    def __init__(self, path: str) -> None:
        super().__init__(lambda: sqlite3.connect(path, check_same_thread=False), 64)
        self._thread.daemon = True  # as SQLAlchemy does with those that it makes

    @contextmanager
    async def cursor(self) -> aiosqlite.Cursor:
        return Cursor(self, self._conn.cursor())
