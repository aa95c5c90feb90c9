"""Adapters between disk, host memory and the slots of the device.

The engine's loop owns a cache: every method is called by that one thread, between steps. Reading a
version and copying it to the device happen in worker threads; `poll` alone makes their results
visible. A version is validated whole before any other loses its slot to it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from loraplex_adapters.errors import AdapterError
from loraplex_adapters.host_tier import HostTier
from loraplex_adapters.layout import BaseModel, ProjectionSpec
from loraplex_adapters.loader import AdapterWeights, Loader
from loraplex_adapters.slabs import DeviceSlabs
from loraplex_adapters.slots import SlotTable
from loraplex_adapters.store import AdapterStore
from loraplex_kernels.lora import LoraSlab

log = logging.getLogger(__name__)

ROWS_PER_SLOT = (
    32  # the rank that every slot may have at once; a wider adapter leaves fewer resident
)
NUM_WORKERS = 2


class LoadOutcome(NamedTuple):
    """How a load ended; without an error the version is resident."""

    version: str
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Totals since the start, and what is held now."""

    disk_loads: int = 0
    host_hits: int = 0
    failures: int = 0
    evictions: int = 0
    load_s: float = 0.0
    host_bytes: int = 0
    device_bytes: int = 0


@dataclass(slots=True)
class _Load:
    started_s: float
    future: "Future[AdapterWeights]"
    slot: int | None  # promised; None: the version goes no further than the host tier
    row_start: int | None = None  # set while the factors are copied to the device
    is_dropped: bool = False


class AdapterCache:
    """The adapters of one engine. More of them than slots is the normal case."""

    def __init__(
        self,
        store: AdapterStore,
        projections: Sequence[ProjectionSpec],
        *,
        max_loras: int,
        max_lora_rank: int,
        dtype: torch.dtype,
        device: torch.device,
        host_bytes: int,
        workers: Executor | None = None,
    ) -> None:
        rows_per_slot = min(max_lora_rank, ROWS_PER_SLOT)
        num_rows = max(max_lora_rank, max_loras * rows_per_slot) if max_loras else 0
        self._store = store
        self._loader = Loader(
            BaseModel.from_projections(None, projections),
            max_lora_rank,
            dtype,
            pin_memory=device.type == "cuda",
        )
        self._slots = SlotTable(max_loras, num_rows, max_lora_rank)
        self._device = DeviceSlabs(
            projections, num_slots=max_loras, num_rows=num_rows, dtype=dtype, device=device
        )
        self._host = HostTier(host_bytes)
        self._loads: dict[str, _Load] = {}
        self._ranks: dict[str, int] = {}  # of the versions read so far: tells whether one would fit
        self._totals = CacheStats()
        self._workers = workers or ThreadPoolExecutor(NUM_WORKERS, "adapter-load")

    @property
    def slabs(self) -> Mapping[str, LoraSlab]:
        return self._device.slabs

    @property
    def resident(self) -> tuple[str, ...]:
        return tuple(self._slots.residents)

    @property
    def num_free_slots(self) -> int:
        """Slots that hold nothing and are promised to nobody."""
        return len(self._slots.free_slots)

    @property
    def stats(self) -> CacheStats:
        return replace(
            self._totals,
            evictions=self._slots.evictions,
            host_bytes=self._host.num_bytes,
            device_bytes=self._device.num_bytes,
        )

    def state(self, version: str) -> Literal["resident", "loading", "absent"]:
        if version in self._loads:
            return "loading"
        return "resident" if self._slots.is_usable(version) else "absent"

    def can_load(self, version: str) -> bool:
        """Whether a load could start now: a slot, and rows once the version's rank is known."""
        if version in self._loads or version in self._slots.residents:
            return False
        return self._slots.fits(self._ranks.get(version))

    def blockers(
        self, version: str, remaining: Callable[[str], float] = lambda _: 0
    ) -> tuple[str, ...] | None:
        """The fewest versions in use whose end would let this one load; None: not known yet.

        Among as few, those whose `remaining` work is least.
        """
        return self._slots.blockers(self._ranks.get(version, 1), remaining)

    def slot_of(self, version: str) -> int:
        return self._slots.residents[version].slot

    def acquire(self, version: str) -> None:
        """One more running sequence uses a version whose state is "resident"."""
        self._slots.acquire(version)

    def release(self, version: str) -> None:
        """The counterpart of acquire."""
        self._slots.release(version)

    def pin(self, version: str, pinned: bool) -> None:
        """Keep a version in its slot, now or as soon as it has one; this does not load it.

        A pin that would leave no room for an adapter of the largest rank waits until it would not.
        """
        self._slots.pin(version, pinned)

    def drop(self, version: str) -> None:
        """Forget a version in all tiers: at once, or when its load or its last reference ends."""
        self._host.remove(version)
        self._ranks.pop(version, None)
        self._slots.drop(version)
        if version in self._loads:
            self._loads[version].is_dropped = True

    def start_load(self, version: str) -> None:
        """Begin to load an absent version; a version that is loading or resident stays as it is.

        Without a slot to be had it is brought to the host tier only. If its rank turns out not to
        fit beside the versions in use, it is absent again without an outcome, and can_load knows.
        """
        if version in self._loads or version in self._slots.residents:
            return
        slot = self._slots.promise() if self.can_load(version) else None
        weights = self._host.get(version)
        started_s = time.monotonic()
        if weights is None:
            future = self._workers.submit(self._read, version)
            self._loads[version] = _Load(started_s, future, slot)
        elif slot is not None:
            self._totals = replace(self._totals, host_hits=self._totals.host_hits + 1)
            self._place(version, weights, slot, started_s)

    def poll(self) -> list[LoadOutcome]:
        """Publish the loads that have ended since the last call."""
        outcomes = []
        for version, load in list(self._loads.items()):
            if load.future.done():
                del self._loads[version]
                outcome = self._advance(version, load)
                if outcome is not None:
                    outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """Wait for the workers; the cache is not used afterwards."""
        self._workers.shutdown(cancel_futures=True)

    def check_integrity(self) -> None:
        """Slots, rows and loads agree with each other."""
        self._slots.check_integrity()
        assert not self._loads.keys() & self._slots.residents.keys()
        copying = {load.row_start for load in self._loads.values()} - {None}
        resident = {r.row_start for r in self._slots.residents.values()}
        assert self._slots.rows.runs.keys() == copying | resident

    def _advance(self, version: str, load: _Load) -> LoadOutcome | None:
        """The next stage of a load whose worker is done: read, then copied, then resident."""
        seconds = time.monotonic() - load.started_s
        error = load.future.exception()
        if error is not None or load.is_dropped:
            if load.slot is not None:
                self._slots.cancel(load.slot, load.row_start)
            if error is not None and not isinstance(error, AdapterError | OSError):
                log.error("loading %s went wrong", version, exc_info=error)
            self._totals = replace(self._totals, failures=self._totals.failures + 1)
            return LoadOutcome(version, _reason(error), seconds)
        weights = load.future.result()
        if load.row_start is None:
            self._totals = replace(self._totals, disk_loads=self._totals.disk_loads + 1)
            self._ranks[version] = weights.rank
            self._host.put(version, weights)
            if load.slot is not None:
                self._place(version, weights, load.slot, load.started_s)
            return None
        assert load.slot is not None
        self._device.publish(load.slot, load.row_start, weights)
        self._slots.settle(version, load.slot, load.row_start)
        self._totals = replace(self._totals, load_s=self._totals.load_s + seconds)
        return LoadOutcome(version, None, seconds)

    def _place(self, version: str, weights: AdapterWeights, slot: int, started_s: float) -> None:
        """Take rows for a validated version and copy it there."""
        row_start = self._slots.take(slot, weights.rank)
        if row_start is not None:
            fence = self._device.fence()
            future = self._workers.submit(self._device.write, weights, row_start, fence)
            self._loads[version] = _Load(started_s, future, slot, row_start)

    def _read(self, version: str) -> AdapterWeights:
        return self._loader.load(self._store.path(version), version)


def _reason(error: BaseException | None) -> str:
    if error is None:
        return "dropped: the version was dropped while it was loading"
    if isinstance(error, AdapterError):
        return f"{error.code}: {error}"
    if isinstance(error, OSError):
        return f"unreadable: {error}"
    return f"internal: {type(error).__name__} while it was loading"
