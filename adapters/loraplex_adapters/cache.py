"""Adapters between disk, host memory and the slots of the device.

The engine's loop owns a cache: every method is called by that one thread, between steps. Reading a
version and copying it to the device happen in worker threads; `poll` alone makes their results
visible. A version is validated whole before any other loses its slot to it. What leaves a tier is said
in worth.py.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Literal

import torch

from loraplex_adapters.errors import AdapterError
from loraplex_adapters.extras import BaseTensors
from loraplex_adapters.host_tier import HostTier
from loraplex_adapters.known_tokens import KnownTokens
from loraplex_adapters.layout import BaseModel, ProjectionSpec
from loraplex_adapters.loader import AdapterWeights, Loader
from loraplex_adapters.loading import Load, LoadOutcome, reason_of
from loraplex_adapters.report import ParityCheck
from loraplex_adapters.residents import Need
from loraplex_adapters.self_tests import SelfTest, SelfTests
from loraplex_adapters.slabs import DeviceSlabs
from loraplex_adapters.slot_extras import SlotExtras
from loraplex_adapters.slots import SlotTable
from loraplex_adapters.store import AdapterStore
from loraplex_adapters.tiers import TierCount, TierStats
from loraplex_kernels.lora import Slab

log = logging.getLogger(__name__)

ROWS_PER_SLOT = 32  # the rank that all slots may have at once; a wider one leaves fewer resident
NUM_WORKERS = 2
MAX_PREFETCHES = 1  # at once: a load with a slot finds a worker
MAX_WANTED = 16  # remembered: more would push each other out of the host tier


class AdapterCache:
    """The adapters of one engine; `base` names what they may change beside the projections."""

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
        base: BaseModel | None = None,
        base_tensors: BaseTensors | None = None,
        extra_bytes: int = 0,
        self_test: SelfTest | None = None,
        workers: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        rows_per_slot = min(max_lora_rank, ROWS_PER_SLOT)
        num_rows = max(max_lora_rank, max_loras * rows_per_slot) if max_loras else 0
        self._store, self.tokens = store, KnownTokens(store)
        self._loader = Loader(
            base or BaseModel.from_projections(None, projections),
            max_lora_rank,
            dtype,
            pin_memory=device.type == "cuda",
            base_tensors=base_tensors,
            max_extra_bytes=extra_bytes,
        )
        self._device = DeviceSlabs(
            projections,
            num_slots=max_loras,
            num_rows=num_rows,
            dtype=dtype,
            device=device,
            max_rank=max_lora_rank,
        )
        self._slots = SlotTable(
            max_loras,
            num_rows,
            max_lora_rank,
            extra_bytes,
            on_evict=self._device.forget,
            clock=clock,
        )
        self._host = HostTier(host_bytes, clock)
        self._clock = clock
        self._loads: dict[str, Load] = {}
        self._needs: dict[str, Need] = {}  # of the versions read so far: tells which would fit
        self._tenants: dict[str, str] = {}  # who asked for a version last
        self._wanted: OrderedDict[str, None] = OrderedDict()  # to be brought to the host tier
        self._on_device, self._in_host, self._on_disk = TierCount(), TierCount(), TierCount()
        self._self_tests = SelfTests(self._read, self_test)
        self._workers = workers or ThreadPoolExecutor(NUM_WORKERS, "adapter-load")

    @property
    def slabs(self) -> Mapping[str, Slab]:
        return self._device.slabs

    @property
    def resident(self) -> tuple[str, ...]:
        return tuple(self._slots.residents)

    @property
    def num_free_slots(self) -> int:
        """Slots that hold nothing and are promised to nobody."""
        return len(self._slots.free_slots)

    @property
    def extras(self) -> Mapping[int, SlotExtras]:
        """By slot, of those whose version has any."""
        return self._device.extras

    @property
    def stats(self) -> tuple[TierStats, ...]:
        """Of the device, the host and the disk; of the disk what this engine has read of it."""
        slots, budget = self._slots, self._device.num_bytes + self._slots.extra_bytes
        known = sum(need.num_bytes for need in self._needs.values())
        on_device = (slots.evictions, budget - slots.free_extra_bytes, budget, len(slots.residents))
        return (
            self._on_device.stats("device", *on_device),
            self._in_host.stats("host", *self._host.held),
            self._on_disk.stats("disk", 0, known, 0, len(self._needs)),
        )

    def state(self, version: str) -> Literal["resident", "loading", "absent"]:
        if version in self._loads:
            return "loading"
        return "resident" if self._slots.is_usable(version) else "absent"

    def can_load(self, version: str) -> bool:
        """Whether a load could start now: a slot, and rows once the version's rank is known."""
        if version in self._loads or version in self._slots.residents:
            return False
        return self._slots.fits(self._needs.get(version))

    def blockers(
        self, version: str, remaining: Callable[[str], float] = lambda _: 0
    ) -> tuple[str, ...] | None:
        """The fewest versions in use whose end would let this one load; None: not known yet."""
        return self._slots.blockers(self._needs.get(version, Need(1)), remaining)

    def slot_of(self, version: str) -> int:
        return self._slots.residents[version].slot

    def acquire(self, version: str) -> None:
        """One more running sequence uses a version whose state is "resident"."""
        self._slots.acquire(version)
        self._on_device.hits += 1

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
        self._needs.pop(version, None)
        self._tenants.pop(version, None)
        self._wanted.pop(version, None)
        self._slots.drop(version)
        if version in self._loads:
            self._loads[version].is_dropped = True

    def prefetch(self, version: str, tenant: str) -> None:
        """Bring a version that somebody waits for to the host tier, ahead of its turn."""
        self._tenants[version] = tenant
        is_there = version in self._loads or version in self._slots.residents
        known = self._needs.get(version)
        is_small = known is None or known.num_bytes <= self._host.budget_bytes
        is_there = is_there or version in self._host or version in self._wanted or not is_small
        if not is_there and len(self._wanted) < MAX_WANTED:
            self._wanted[version] = None
            self._start_prefetches()

    def start_load(self, version: str) -> None:
        """Begin to load an absent version; a version that is loading or resident stays as it is.

        Without a slot to be had it is brought to the host tier only. If it does not fit beside the
        versions in use, or is dropped meanwhile, it is absent again without an outcome.
        """
        if version in self._loads or version in self._slots.residents:
            return
        self._wanted.pop(version, None)
        slot = self._slots.promise() if self.can_load(version) else None
        weights = self._host.get(version)
        if weights is None:
            self._start_reading(version, slot)
        elif slot is not None:
            self._in_host.hits += 1
            self._place(version, weights, slot, self._clock())

    def poll(self) -> list[LoadOutcome]:
        """Publish the loads that have ended since the last call."""
        outcomes = []
        for version, load in list(self._loads.items()):
            if load.future.done():
                del self._loads[version]
                if (outcome := self._advance(version, load)) is not None:
                    outcomes.append(outcome)
        if self._wanted:
            self._start_prefetches()
        return outcomes

    def check(self, version: str) -> None:
        """Begin the parity self-test of a version, wherever it is."""
        self._self_tests.start(version)

    @property
    def checks(self) -> tuple[ParityCheck, ...]:
        """The latest self-tests that have ended."""
        return self._self_tests.results

    def close(self) -> None:
        """Wait for the workers; the cache is not used afterwards."""
        self._workers.shutdown(cancel_futures=True)
        self._self_tests.close()

    def check_integrity(self) -> None:
        """Slots, rows and loads agree with each other."""
        self._slots.check_integrity()
        assert not self._loads.keys() & self._slots.residents.keys()
        copying = {load.row_start for load in self._loads.values()} - {None}
        resident = {r.row_start for r in self._slots.residents.values()}
        assert self._slots.rows.runs.keys() == copying | resident

    def _advance(self, version: str, load: Load) -> LoadOutcome | None:
        """The next stage of a load whose worker is done: read, then copied, then resident."""
        now = self._clock()
        error = load.future.exception()
        if error is not None:
            return self._fail(version, load, error)
        if load.is_dropped:  # whoever waits for it nevertheless will ask anew
            if load.slot is not None:
                self._slots.cancel(load.slot, load.row_start)
            return None
        result = load.future.result()
        if isinstance(result, AdapterWeights):
            self._keep(version, load, result, now - load.stage_s)
            return None
        assert load.slot is not None
        assert load.row_start is not None
        self._device.publish(load.slot, load.row_start, result)
        self._slots.settle(version, load.slot, load.row_start)
        self._on_device.count_load(now - load.stage_s)
        return LoadOutcome(version, None, now - load.started_s)

    def _keep(self, version: str, load: Load, weights: AdapterWeights, seconds: float) -> None:
        """A version was read in so many seconds: to the host tier, and on if it has a slot."""
        tenant, extra_bytes = self._tenants.get(version), weights.extras.num_bytes
        self._on_disk.hits += 1
        self._in_host.count_load(seconds)
        self._needs[version] = Need(weights.rank, extra_bytes, weights.num_bytes, seconds, tenant)
        self._host.put(version, weights, tenant, seconds)
        if load.slot is not None:
            self._place(version, weights, load.slot, load.started_s)

    def _fail(self, version: str, load: Load, error: BaseException) -> LoadOutcome:
        self.tokens.forget(version)
        if load.slot is not None:
            self._slots.cancel(load.slot, load.row_start)
        if not isinstance(error, AdapterError | OSError):
            log.error("loading %s went wrong", version, exc_info=error)
        (self._on_disk if load.row_start is None else self._on_device).failures += 1
        return LoadOutcome(version, reason_of(error), self._clock() - load.started_s)

    def _start_prefetches(self) -> None:
        """As many as may run beside the loads that somebody waits for."""
        running = sum(load.slot is None for load in self._loads.values())
        while self._wanted and running < MAX_PREFETCHES:
            version, _ = self._wanted.popitem(last=False)
            self._start_reading(version, None)
            running += 1

    def _start_reading(self, version: str, slot: int | None) -> None:
        now = self._clock()
        self._loads[version] = Load(now, now, self._workers.submit(self._read, version), slot)

    def _place(self, version: str, weights: AdapterWeights, slot: int, started_s: float) -> None:
        """Take rows for a validated version and copy it there."""
        row_start = self._slots.take(slot, self._needs[version])
        if row_start is not None:
            fence = self._device.fence()
            future = self._workers.submit(self._device.write, weights, row_start, fence)
            self._loads[version] = Load(started_s, self._clock(), future, slot, row_start)

    def _read(self, version: str) -> AdapterWeights:
        return self._loader.load(self._store.path(version), version)
