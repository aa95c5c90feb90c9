"""What a request needs of the database, kept a moment, and longer while the database is away."""

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

    async def get(self, key: Key, read: Callable[[], Awaitable[Value]]) -> Value:
        value = self._recent.get(key, self._fresh_s)
        if value is not None:
            return value
        try:
            value = await read()
        except UNREACHABLE as error:
            value = self._recent.get(key)
            if value is None:
                raise Overloaded("The database is away.", retry_after_s=1.0) from error
            return value
        self._recent.put(key, value)
        return value

    def forget(self, is_meant: Callable[[Key], bool]) -> None:
        """What was read of these keys is out of date."""
        self._recent.drop_where(lambda key, _: is_meant(key))

    def clear(self) -> None:
        """What was read is out of date."""
        self._recent.clear()
