import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.adapters.folders import BASE, DOWN, Q, V, lora_tensors, projections, write_adapter

from loraplex_adapters.cache import AdapterCache, LoadOutcome
from loraplex_adapters.errors import AdapterError
from loraplex_adapters.loader import AdapterWeights, Loader
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore

MAX_RANK = 16
MODULES = ((Q, V), (DOWN,), (Q,), (Q, V, DOWN))
RANKS = (1, 4, 16, 12, 3, 8)
MakeCache = Callable[..., AdapterCache]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> AdapterStore:
    return AdapterStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def versions(store: AdapterStore, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Six adapters of different ranks and modules."""
    folder = tmp_path_factory.mktemp("adapters")
    return [
        put(store, folder / str(i), rank, seed=i, modules=MODULES[i % 4])
        for i, rank in enumerate(RANKS)
    ]


def put(
    store: AdapterStore, folder: Path, rank: int, seed: int, modules: tuple[str, ...] = (Q, V)
) -> str:
    tensors = lora_tensors(modules, rank, seed)
    write_adapter(folder, tensors, r=rank)
    return store.put(folder, base=BASE, limits=Limits(MAX_RANK)).version


@pytest.fixture
def make_cache(store: AdapterStore) -> Iterator[MakeCache]:
    made: list[AdapterCache] = []

    def make(max_loras: int = 2, host_bytes: int = 1 << 20) -> AdapterCache:
        made.append(new_cache(store, max_loras, host_bytes))
        return made[-1]

    yield make
    for cache in made:
        cache.check_integrity()
        cache.close()


def new_cache(
    store: AdapterStore, max_loras: int, host_bytes: int, workers: Executor | None = None
) -> AdapterCache:
    return AdapterCache(
        store,
        projections(),
        max_loras=max_loras,
        max_lora_rank=MAX_RANK,
        dtype=torch.float32,
        device=torch.device("cpu"),
        host_bytes=host_bytes,
        workers=workers,
    )


def settle(cache: AdapterCache, *versions: str) -> list[LoadOutcome]:
    """Poll until none of these is loading."""
    outcomes = []
    deadline = time.monotonic() + 60
    while any(cache.state(version) == "loading" for version in versions):
        assert time.monotonic() < deadline
        outcomes += cache.poll()
        time.sleep(0.0005)
    return outcomes


def load(cache: AdapterCache, version: str) -> list[LoadOutcome]:
    cache.start_load(version)
    return settle(cache, version)


def disk_reads(cache: AdapterCache) -> int:
    return cache.stats[2].hits


def host_bytes(cache: AdapterCache) -> int:
    return cache.stats[1].num_bytes


def check_slabs(cache: AdapterCache, store: AdapterStore) -> None:
    """Every usable version's slot computes its own adapter, slice by slice."""
    for version in cache.resident:
        if cache.state(version) != "resident":
            continue
        weights = Loader(BASE, MAX_RANK, torch.float32).load(store.path(version), version)
        slot = cache.slot_of(version)
        for projection in projections():
            slab = cache.slabs[projection.name]
            for i, piece in enumerate(projection.slices):
                factors = weights.modules.get(piece.module)
                assert int(slab.rank[slot, i]) == (factors.rank if factors else 0)
                if factors:
                    assert float(slab.scale[slot, i]) == pytest.approx(factors.scale)
                    a, b = slab.factors(i, slot)
                    assert torch.equal(a, factors.a)
                    assert torch.equal(b, factors.b)


def test_loaded_version_is_resident_only_after_poll(
    make_cache: MakeCache, versions: list[str], store: AdapterStore
) -> None:
    cache = make_cache()
    assert cache.state(versions[0]) == "absent"
    cache.start_load(versions[0])
    time.sleep(0.05)
    assert cache.state(versions[0]) == "loading"

    [outcome] = settle(cache, versions[0])

    assert (outcome.version, outcome.error) == (versions[0], None)
    assert outcome.seconds > 0
    assert cache.state(versions[0]) == "resident"
    check_slabs(cache, store)


def test_more_adapters_than_slots_in_a_cycle(
    make_cache: MakeCache, versions: list[str], store: AdapterStore
) -> None:
    cache = make_cache(max_loras=2)
    num_loads = 0
    for version in versions * 3:
        if cache.state(version) == "absent":
            assert cache.can_load(version)
            [outcome] = load(cache, version)
            assert outcome.error is None
            num_loads += 1
        check_slabs(cache, store)
    device, host, disk = cache.stats
    assert (disk.hits, host.loads) == (len(versions), len(versions))
    assert (device.loads, host.hits) == (num_loads, num_loads - len(versions))
    assert device.evictions == num_loads - 2
    assert device.load_s > 0
    assert host.load_s > 0


def test_fifty_loads_of_one_version_are_one(make_cache: MakeCache, versions: list[str]) -> None:
    cache = make_cache()
    for _ in range(50):
        cache.start_load(versions[0])
        cache.poll()
    settle(cache, versions[0])
    assert disk_reads(cache) == 1
    assert cache.num_free_slots == 1


def test_failed_load_costs_nobody_a_slot(
    make_cache: MakeCache, versions: list[str], tmp_path: Path, store: AdapterStore
) -> None:
    """The only slot holds an idle version when a broken one asks for it."""
    broken = put(store, tmp_path / "broken", 4, seed=99)
    file = store.path(broken) / "adapter.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    cache = make_cache(max_loras=1)
    load(cache, versions[0])

    [outcome] = load(cache, broken)

    assert outcome.error is not None
    assert outcome.error.startswith("truncated_file: ")
    assert cache.state(broken) == "absent"
    assert cache.state(versions[0]) == "resident"
    check_slabs(cache, store)


def test_version_deleted_from_disk_fails_with_a_reason(
    make_cache: MakeCache, tmp_path: Path, store: AdapterStore
) -> None:
    version = put(store, tmp_path / "a", 4, seed=98)
    store.delete(version)
    [outcome] = load(make_cache(), version)
    assert outcome.error == "unknown_version: The store holds no such version."


class FaultyWorkers(Executor):
    """Every job ends in a fault that nobody foresaw."""

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(ZeroDivisionError("a bug"))
        return future


def test_a_fault_in_a_worker_is_an_outcome_and_logged(
    versions: list[str], store: AdapterStore, caplog: pytest.LogCaptureFixture
) -> None:
    cache = new_cache(store, 1, 1 << 20, FaultyWorkers())
    [outcome] = load(cache, versions[0])
    assert outcome.error == "internal: ZeroDivisionError while it was loading"
    assert "ZeroDivisionError: a bug" in caplog.text
    assert cache.state(versions[0]) == "absent"
    assert cache.num_free_slots == 1


def test_slot_in_use_is_not_taken(make_cache: MakeCache, versions: list[str]) -> None:
    cache = make_cache(max_loras=1)
    load(cache, versions[0])
    cache.acquire(versions[0])
    assert not cache.can_load(versions[1])

    assert load(cache, versions[1]) == []  # brought to the host tier

    assert cache.state(versions[0]) == "resident"
    cache.release(versions[0])
    assert cache.can_load(versions[1])
    [outcome] = load(cache, versions[1])
    assert outcome.error is None
    assert disk_reads(cache) == 2


def test_promised_slot_is_not_used_any_more(make_cache: MakeCache, versions: list[str]) -> None:
    """Else a flood on one adapter would keep the only slot from all others."""
    cache = make_cache(max_loras=1)
    load(cache, versions[0])
    cache.start_load(versions[1])
    assert cache.state(versions[0]) == "absent"
    assert not cache.can_load(versions[0])
    settle(cache, versions[1])
    assert cache.resident == (versions[1],)


def test_dropped_while_loading_never_becomes_resident(
    make_cache: MakeCache, versions: list[str]
) -> None:
    cache = make_cache()
    cache.start_load(versions[0])
    cache.drop(versions[0])
    assert settle(cache, versions[0]) == [], "no failure: who waits for it asks anew"
    assert (cache.state(versions[0]), cache.num_free_slots) == ("absent", 2)
    assert host_bytes(cache) == 0


def test_pinned_version_outlives_a_cycle(make_cache: MakeCache, versions: list[str]) -> None:
    cache = make_cache(max_loras=2)
    cache.pin(versions[0], True)
    for version in versions:
        load(cache, version)
    assert versions[0] in cache.resident
    cache.pin(versions[0], False)
    [other] = set(cache.resident) - {versions[0]}
    cache.acquire(other)
    load(cache, versions[2])
    assert versions[0] not in cache.resident
    cache.release(other)


def test_host_tier_keeps_its_budget(make_cache: MakeCache, versions: list[str]) -> None:
    cache = make_cache(max_loras=1, host_bytes=3000)
    for version in versions:
        load(cache, version)
        assert host_bytes(cache) <= 3000
    assert cache.stats[1].evictions > 0


def test_two_hundred_cycles_leave_nothing_behind(
    make_cache: MakeCache, store: AdapterStore, tmp_path: Path
) -> None:
    fresh = [put(store, tmp_path / str(i), 16, seed=1000 + i) for i in range(20)]
    cache = make_cache(max_loras=2)
    for cycle in range(200):
        version = fresh[cycle % 20]
        [outcome] = load(cache, version)
        assert outcome.error is None
        cache.acquire(version)
        cache.drop(version)
        assert version in cache.resident
        cache.release(version)
        assert (cache.resident, cache.num_free_slots) == ((), 2)
    assert host_bytes(cache) == 0
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is AdapterWeights]


class PatientWorkers(Executor):
    """Does a job when it is told to, so that every interleaving can be tried."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self, index: int) -> None:
        future, job = self.jobs.pop(index % len(self.jobs))
        try:
            future.set_result(job())
        except AdapterError as error:
            future.set_exception(error)


class CacheMachine(RuleBasedStateMachine):
    """Random operations on a cache of real files; each usable slot computes its own adapter."""

    store: AdapterStore
    versions: tuple[str, ...]
    indices = st.integers(0, 6)

    @initialize(max_loras=st.integers(1, 3), host_bytes=st.sampled_from([0, 3000, 1 << 20]))
    def start(self, max_loras: int, host_bytes: int) -> None:
        self.workers = PatientWorkers()
        self.cache = new_cache(self.store, max_loras, host_bytes, self.workers)
        self.max_loras = max_loras
        self.references = dict.fromkeys(self.versions, 0)

    @rule(index=indices)
    def start_load(self, index: int) -> None:
        version = self.versions[index]
        could_load, before = self.cache.can_load(version), self.cache.state(version)
        self.cache.start_load(version)
        if could_load:
            assert (before, self.cache.state(version)) == ("absent", "loading")

    @rule(index=st.integers(0, 20))
    def work(self, index: int) -> None:
        if self.workers.jobs:
            self.workers.work(index)

    @rule()
    def poll(self) -> None:
        for outcome in self.cache.poll():
            assert self.cache.state(outcome.version) == ("absent" if outcome.error else "resident")
        check_slabs(self.cache, self.store)

    @rule(index=indices)
    def acquire(self, index: int) -> None:
        version = self.versions[index]
        if self.cache.state(version) == "resident":
            self.cache.acquire(version)
            self.references[version] += 1

    @rule(index=indices)
    def release(self, index: int) -> None:
        version = self.versions[index]
        if self.references[version]:
            self.references[version] -= 1
            self.cache.release(version)

    @rule(index=indices)
    def drop(self, index: int) -> None:
        self.cache.drop(self.versions[index])

    @rule(index=indices, pinned=st.booleans())
    def pin(self, index: int, pinned: bool) -> None:
        self.cache.pin(self.versions[index], pinned)

    @invariant()
    def holds_together(self) -> None:
        self.cache.check_integrity()
        for version, count in self.references.items():
            assert not count or version in self.cache.resident

    def teardown(self) -> None:
        """Once all jobs are done and all users gone, any version can be loaded."""
        if not hasattr(self, "cache"):
            return
        self.finish_jobs()
        for version, count in self.references.items():
            for _ in range(count):
                self.cache.release(version)
            self.cache.drop(version)
        assert self.cache.num_free_slots == self.max_loras
        assert self.cache.resident == ()
        widest = self.versions[RANKS.index(MAX_RANK)]
        self.cache.start_load(widest)
        self.finish_jobs()
        assert self.cache.state(widest) == "resident"

    def finish_jobs(self) -> None:
        self.cache.poll()
        while self.workers.jobs:
            self.workers.work(0)
            self.cache.poll()


def test_random_life_of_a_cache(store: AdapterStore, versions: list[str], tmp_path: Path) -> None:
    broken = put(store, tmp_path / "broken", 4, seed=97)
    file = store.path(broken) / "adapter.safetensors"
    file.write_bytes(file.read_bytes()[:-4])

    class Machine(CacheMachine):
        pass

    Machine.store, Machine.versions = store, (*versions, broken)
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
