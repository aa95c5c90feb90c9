"""The twin of the adapter cache for tests without a model: slots and states, no weights."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from loraplex_adapters.report import ParityCheck
from loraplex_adapters.slot_extras import SlotExtras
from loraplex_adapters.tiers import TierStats
from loraplex_engine.adapter_tier import Vocabularies
from loraplex_engine.scheduling.policy import AdapterState
from loraplex_kernels.lora import Slab


class Outcome(NamedTuple):
    version: str
    error: str | None
    seconds: float


@dataclass
class _Load:
    version: str
    slot: int
    polls_left: int


class NoTokens:
    """Every version has the base model's vocabulary."""

    def of(self, version: str) -> None:
        return None


class MemoryAdapters:
    """A load takes `polls` calls of poll; one of an unknown version fails."""

    def __init__(self, versions: Collection[str], *, num_slots: int, polls: int = 1) -> None:
        self.versions = versions
        self.polls = polls
        self.users: dict[str, int] = {}
        self.slabs: Mapping[str, Slab] = {}
        self.extras: Mapping[int, SlotExtras] = {}
        self.stats: tuple[TierStats, ...] = ()
        self.tokens: Vocabularies = NoTokens()
        self.checks: tuple[ParityCheck, ...] = ()
        self._slots: list[str | None] = [None] * num_slots
        self._loads: list[_Load] = []
        self._dropped: set[str] = set()

    @property
    def resident(self) -> list[str]:
        return [version for version in self._slots if version is not None]

    @property
    def num_free_slots(self) -> int:
        return self._slots.count(None) - len(self._loads)

    def state(self, adapter: str) -> AdapterState:
        if adapter in self._slots:
            return "resident"
        return "loading" if adapter in [load.version for load in self._loads] else "absent"

    def can_load(self, adapter: str) -> bool:
        return self._usable_slot() is not None

    def blockers(self, adapter: str, remaining: Callable[[str], float]) -> tuple[str, ...] | None:
        in_use = [v for v in self.resident if self.users.get(v)]
        return (min(in_use, key=remaining),) if in_use else None

    def acquire(self, adapter: str) -> None:
        assert adapter in self._slots
        self.users[adapter] = self.users.get(adapter, 0) + 1

    def release(self, adapter: str) -> None:
        self.users[adapter] -= 1
        assert self.users[adapter] >= 0
        if adapter in self._dropped:
            self.drop(adapter)

    def prefetch(self, version: str, tenant: str) -> None:
        """There is no tier below."""

    def start_load(self, version: str) -> None:
        slot = self._usable_slot()
        if slot is None or self.state(version) != "absent":
            return
        self._slots[slot] = None
        self._loads.append(_Load(version, slot, self.polls))

    def poll(self) -> list[Outcome]:
        outcomes = []
        for load in list(self._loads):
            load.polls_left -= 1
            if load.polls_left <= 0:
                self._loads.remove(load)
                outcomes.append(self._finish(load))
        return outcomes

    def slot_of(self, version: str) -> int:
        return self._slots.index(version)

    def pin(self, version: str, pinned: bool) -> None:
        self.users[version] = self.users.get(version, 0) + (1 if pinned else -1)

    def drop(self, version: str) -> None:
        if self.users.get(version):
            self._dropped.add(version)
            return
        self._dropped.discard(version)
        if version in self._slots:
            self._slots[self._slots.index(version)] = None

    def check(self, version: str) -> None:
        """There are no weights to test."""

    def close(self) -> None:
        self._loads.clear()

    def _usable_slot(self) -> int | None:
        """A slot that no load is on its way to: an empty one first, or one that is idle."""
        taken = [load.slot for load in self._loads]
        slots = [
            (v is not None, i) for i, v in enumerate(self._slots) if not self.users.get(v or "")
        ]
        return next((i for _, i in sorted(slots) if i not in taken), None)

    def _finish(self, load: _Load) -> Outcome:
        if load.version not in self.versions:
            return Outcome(load.version, "no such version", 0.0)
        self._slots[load.slot] = load.version
        return Outcome(load.version, None, 0.0)
