"""What a request needs of the database, kept a moment, and longer while the database is away."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from loraplex_platform.db.database import UNREACHABLE
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Overloaded
from loraplex_platform.kit.recent import Recent

OUTAGE_S = 60.0  # how long what was read is believed while the database is away

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """Reads each key at most once in `fresh_s`; raises Overloaded when it can neither read nor remember."""

    def __init__(self, clock: Clock, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._recent: Recent[Key, Value] = Recent(clock, OUTAGE_S)
        self._reading: dict[Key, asyncio.Future[Value]] = {}

    async def get(self, key: Key, read: Callable[[], Awaitable[Value]]) -> Value:
        """Who comes while it is read waits for that reading, and a caller that leaves stops none."""
        value = self._recent.get(key, self._fresh_s)
        if value is not None:
            return value
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.ensure_future(self._read(key, read))
            self._reading[key] = reading
            reading.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(reading)

    def forget(self, is_meant: Callable[[Key], bool]) -> None:
        """What was read of these keys is out of date, and so is what is being read."""
        self._recent.drop_where(lambda key, _: is_meant(key))
        self._reading = {key: r for key, r in self._reading.items() if not is_meant(key)}

    def clear(self) -> None:
        """What was read is out of date, and so is what is being read."""
        self._recent.clear()
        self._reading.clear()

    async def _read(self, key: Key, read: Callable[[], Awaitable[Value]]) -> Value:
        try:
            value = await read()
        except UNREACHABLE as error:
            remembered = self._recent.get(key)
            if remembered is None:
                raise Overloaded("The database is away.", retry_after_s=1.0) from error
            return remembered
        if self._reading.get(key) is asyncio.current_task():  # not cleared meanwhile
            self._recent.put(key, value)
        return value

    def _forget(self, key: Key, done: asyncio.Future[Value]) -> None:
        if self._reading.get(key) is done:
            del self._reading[key]
        if not done.cancelled():
            done.exception()  # those who wait for it raise it; perhaps they have all gone
