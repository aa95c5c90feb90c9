"""Who has which slot and rows: references, promises, pins and the order of eviction. No tensor."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from loraplex_adapters.rows import RowAllocator


@dataclass(slots=True)
class Resident:
    """A version whose factors lie in a slot."""

    slot: int
    row_start: int
    references: int = 0
    is_pinned: bool = False
    is_promised: bool = False  # its slot goes to a load in flight once that has been validated
    is_dropped: bool = False  # leaves with its last reference

    @property
    def is_evictable(self) -> bool:
        return not (self.references or self.is_pinned or self.is_promised)


class SlotTable:
    """Slots and rows of one device.

    A load first gets a *promise* of a slot. The idle version in that slot, if there is one, takes no
    new references but stays until `take` has rows for its successor; `cancel` gives it back.
    """

    def __init__(self, num_slots: int, num_rows: int, max_rank: int) -> None:
        assert not num_slots or num_rows >= max_rank
        self.num_slots = num_slots
        self.max_rank = max_rank
        self.rows = RowAllocator(num_rows)
        self.residents: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self.free_slots = list(range(num_slots))
        self.evictions = 0
        self._promises: dict[int, str | None] = {}  # slot -> the version that still lies in it
        self._pins: set[str] = set()

    def is_usable(self, version: str) -> bool:
        """Whether a sequence may start to use this version."""
        resident = self.residents.get(version)
        return resident is not None and not (resident.is_promised or resident.is_dropped)

    def fits(self, rank: int | None) -> bool:
        """Whether a slot, and rows for this rank if it is known, are free or idle."""
        idle = {r.row_start for r in self.residents.values() if r.is_evictable}
        if not self.free_slots and not idle:
            return False
        return rank is None or self.rows.find(rank, without=idle) is not None

    def blockers(
        self, rank: int, remaining: Callable[[str], float] = lambda _: 0
    ) -> tuple[str, ...] | None:
        """The fewest versions in use whose end would make room for this rank; None: not known yet.

        Rows are consecutive, so a wide adapter may have to wait for several neighbours at once.
        Among as few, those whose `remaining` work is least.
        """

        def wait(versions: tuple[str, ...]) -> tuple[int, float]:
            return len(versions), max(map(remaining, versions), default=0)

        owners = {r.row_start: (v, r) for v, r in self.residents.items()}
        ends = [start + length for start, length in self.rows.runs.items()]
        best: tuple[str, ...] | None = None
        for first in sorted({0, *ends}):  # a window further right overlaps no fewer runs
            if first + rank > self.rows.num_rows:
                continue
            inside = [
                owners.get(start)
                for start, length in self.rows.runs.items()
                if start < first + rank and start + length > first
            ]
            found = _users(inside)
            if found is not None and (best is None or wait(found) < wait(best)):
                best = found
        if best == () and not self.fits(rank):  # rows enough, but no slot
            in_use = [v for v, r in self.residents.items() if r.references and not r.is_pinned]
            return (min(in_use, key=remaining),) if in_use else None
        return best

    def acquire(self, version: str) -> None:
        assert self.is_usable(version)
        self.residents[version].references += 1
        self.residents.move_to_end(version)

    def release(self, version: str) -> None:
        resident = self.residents[version]
        assert resident.references > 0
        resident.references -= 1
        self.residents.move_to_end(version)
        if resident.is_dropped and not resident.references:
            self._evict(version)

    def promise(self) -> int | None:
        """Set a slot aside: a free one, or the least recently used idle one."""
        if self.free_slots:
            slot = self.free_slots.pop(0)
            self._promises[slot] = None
            return slot
        victim = next((v for v, r in self.residents.items() if r.is_evictable), None)
        if victim is None:
            return None
        resident = self.residents[victim]
        resident.is_promised = True
        self._promises[resident.slot] = victim
        return resident.slot

    def take(self, slot: int, rank: int) -> int | None:
        """Evict what must go and return the first row for a promised slot.

        If the rows cannot be had beside the versions in use, the promise is cancelled: None.
        """
        assert 0 < rank <= self.max_rank
        victim = self._promises[slot]
        evictable = {r.row_start for r in self.residents.values() if r.is_evictable}
        if victim is not None:
            evictable.add(self.residents[victim].row_start)
        if self.rows.find(rank, without=evictable) is None:
            self.cancel(slot)
            return None
        if victim is not None:
            self._evict(victim)
            self.free_slots.remove(slot)
            self._promises[slot] = None
        row_start = self.rows.allocate(rank)
        while row_start is None:
            self._evict(next(v for v, r in self.residents.items() if r.is_evictable))
            row_start = self.rows.allocate(rank)
        return row_start

    def settle(self, version: str, slot: int, row_start: int) -> None:
        """The version's factors are in its rows: it is resident from now on."""
        del self._promises[slot]
        self.residents[version] = Resident(slot, row_start)
        self._apply_pins()

    def cancel(self, slot: int, row_start: int | None = None) -> None:
        """Give a promised slot back, and the rows that were taken for it."""
        if row_start is not None:
            self.rows.free(row_start)
        victim = self._promises.pop(slot)
        if victim is None:
            self.free_slots.append(slot)
        else:
            resident = self.residents[victim]
            resident.is_promised = False
            if resident.is_dropped:
                self._evict(victim)
        self._apply_pins()

    def drop(self, version: str) -> None:
        """Forget a version: now if it is idle, else with its last reference or its promise."""
        self._pins.discard(version)
        resident = self.residents.get(version)
        if resident is not None:
            resident.is_dropped, resident.is_pinned = True, False
            if resident.is_evictable:
                self._evict(version)
        self._apply_pins()

    def pin(self, version: str, pinned: bool) -> None:
        """Keep a version from eviction, now or as soon as it is resident and a pin leaves room."""
        if pinned:
            self._pins.add(version)
        else:
            self._pins.discard(version)
            if version in self.residents:
                self.residents[version].is_pinned = False
        self._apply_pins()

    def check_integrity(self) -> None:
        """Every slot and row has exactly one owner, and pins leave room for the largest adapter."""
        held = [r.slot for r in self.residents.values() if not r.is_promised]
        assert sorted([*held, *self._promises, *self.free_slots]) == list(range(self.num_slots))
        promised = {v: r.slot for v, r in self.residents.items() if r.is_promised}
        assert promised == {v: slot for slot, v in self._promises.items() if v is not None}
        end = 0
        for start, length in sorted(self.rows.runs.items()):
            assert start >= end
            end = start + length
        assert end <= self.rows.num_rows
        assert {r.row_start for r in self.residents.values()} <= self.rows.runs.keys()
        assert all(r.references >= 0 for r in self.residents.values())
        assert not any(r.references for r in self.residents.values() if r.is_promised)
        assert self._leaves_room({v for v, r in self.residents.items() if r.is_pinned})

    def _evict(self, version: str) -> None:
        resident = self.residents.pop(version)
        assert not resident.references
        self.rows.free(resident.row_start)
        self.free_slots.append(resident.slot)
        self.evictions += 1

    def _apply_pins(self) -> None:
        pinned = {v for v, r in self.residents.items() if r.is_pinned}
        for version in sorted(self._pins - pinned):
            if self.is_usable(version) and self._leaves_room({*pinned, version}):
                self.residents[version].is_pinned = True
                pinned.add(version)

    def _leaves_room(self, pinned: set[str]) -> bool:
        """Whether an adapter of the largest rank could still be loaded, were all others idle."""
        kept = {self.residents[version].row_start for version in pinned}
        movable = self.rows.runs.keys() - kept
        return (
            len(pinned) < self.num_slots
            and self.rows.find(self.max_rank, without=movable) is not None
        ) or not pinned


def _users(inside: list[tuple[str, Resident] | None]) -> tuple[str, ...] | None:
    """The versions in use among the owners of rows; None if one of them will not make way."""
    users = []
    for owner in inside:
        if owner is None:  # a load in flight
            return None
        version, resident = owner
        if resident.is_pinned or resident.is_promised:
            return None
        if resident.references:
            users.append(version)
    return tuple(users)
