"""Which store the settings ask for."""

from collections.abc import Callable
from importlib import import_module

from loraplex_platform.admission.guarded_store import GuardedStore
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.store import LimitStore
from loraplex_platform.news.opening import RedisNotInstalled


def open_store(
    redis_url: str | None, timeout_s: float, workers: int, on_change: Callable[[bool], None]
) -> LimitStore:
    """This process's memory, or a shared Redis with a local stand-in."""
    if redis_url is None:
        return MemoryStore()
    try:  # by name: the client belongs to an extra that the embedded default does not install
        module = import_module("loraplex_platform.admission.redis_store")
    except ModuleNotFoundError as error:
        raise RedisNotInstalled from error
    return GuardedStore(module.RedisStore(redis_url, timeout_s), workers, on_change=on_change)
