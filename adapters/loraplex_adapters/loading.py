"""A version on its way between tiers, and how the way ended."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from loraplex_adapters.errors import AdapterError
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.slabs import PlacedAdapter


class LoadOutcome(NamedTuple):
    """How a load ended; without an error the version is resident."""

    version: str
    error: str | None
    seconds: float


@dataclass(slots=True)
class Load:
    """One load in flight; its stage ends when its future is done."""

    started_s: float  # of the whole load
    stage_s: float  # when the stage it is in began
    future: "Future[AdapterWeights] | Future[PlacedAdapter]"
    slot: int | None  # promised; None: the version goes no further than the host tier
    row_start: int | None = None  # set while the factors are copied to the device
    is_dropped: bool = False


def reason_of(error: BaseException) -> str:
    if isinstance(error, AdapterError):
        return f"{error.code}: {error}"
    if isinstance(error, OSError):
        return f"unreadable: {error}"
    return f"internal: {type(error).__name__} while it was loading"
