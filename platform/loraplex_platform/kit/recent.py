"""What was read a moment ago: bounded in age and in number, absent things are never kept."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from loraplex_platform.kit.clock import Clock

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key, each for `max_age_s` after it was put."""

    def __init__(self, clock: Clock, max_age_s: float, max_size: int = 10_000) -> None:
        self._clock = clock
        self._max_age_s = max_age_s
        self._max_size = max_size
        self._held: dict[Key, tuple[float, Value]] = {}  # oldest first

    def get(self, key: Key, max_age_s: float | None = None) -> Value | None:
        """Not older than `max_age_s`, where that is less than the age that all are kept for."""
        put_s, value = self._held.get(key, (None, None))
        limit_s = self._max_age_s if max_age_s is None else min(max_age_s, self._max_age_s)
        if put_s is None or self._clock.monotonic() - put_s >= limit_s:
            return None
        return value

    def put(self, key: Key, value: Value) -> None:
        self._held.pop(key, None)
        while len(self._held) >= self._max_size:
            del self._held[next(iter(self._held))]
        self._held[key] = (self._clock.monotonic(), value)

    def drop(self, key: Key) -> None:
        self._held.pop(key, None)

    def drop_where(self, is_meant: Callable[[Key, Value], bool]) -> None:
        for key, (_, value) in list(self._held.items()):
            if is_meant(key, value):
                del self._held[key]

    def clear(self) -> None:
        self._held.clear()
