"""Who has which slot and rows: references, promises, pins and the order of eviction. No tensor."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from loraplex_adapters.residents import Need, Resident
from loraplex_adapters.rows import RowAllocator
from loraplex_adapters.worth import Holding, least_worth


class SlotTable:
    """Slots and rows of one device.

    A load first gets a *promise* of a slot. The idle version in that slot, if there is one, takes no
    new references but stays until `take` has rows for its successor; `cancel` gives it back.
    """

    def __init__(
        self,
        num_slots: int,
        num_rows: int,
        max_rank: int,
        extra_bytes: int = 0,
        *,
        on_evict: Callable[[int], object] = lambda slot: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert not num_slots or num_rows >= max_rank
        self.num_slots = num_slots
        self.max_rank = max_rank
        self.rows = RowAllocator(num_rows)
        self.extra_bytes = extra_bytes  # that versions may hold beside their rows
        self._on_evict = on_evict
        self._clock = clock
        self._taken: dict[int, Need] = {}  # by promised slots that have their rows
        self.residents: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self.free_slots = list(range(num_slots))
        self.evictions = 0
        self._promises: dict[int, str | None] = {}  # slot -> the version that still lies in it
        self._pins: set[str] = set()

    def is_usable(self, version: str) -> bool:
        """Whether a sequence may start to use this version."""
        resident = self.residents.get(version)
        return resident is not None and not (resident.is_promised or resident.is_dropped)

    def fits(self, need: Need | None) -> bool:
        """Whether a slot, and rows and bytes if the need is known, are free or idle."""
        idle = [r for r in self.residents.values() if r.is_evictable]
        if not self.free_slots and not idle:
            return False
        return need is None or self._has_room(need, idle)

    def _has_room(self, need: Need, without: Sequence[Resident]) -> bool:
        starts = {resident.row_start for resident in without}
        freed = sum(resident.need.extra_bytes for resident in without)
        return (
            need.extra_bytes <= self.free_extra_bytes + freed
            and self.rows.find(need.rank, without=starts) is not None
        )

    @property
    def free_extra_bytes(self) -> int:
        held = sum(resident.need.extra_bytes for resident in self.residents.values())
        return self.extra_bytes - held - sum(need.extra_bytes for need in self._taken.values())

    def blockers(
        self, need: Need, remaining: Callable[[str], float] = lambda _: 0
    ) -> tuple[str, ...] | None:
        """The fewest versions in use whose end would make room for this one; None: not known yet.

        Rows are consecutive, so a wide adapter may have to wait for several neighbours at once.
        Among as few, those whose `remaining` work is least.
        """

        def wait(versions: tuple[str, ...]) -> tuple[int, float]:
            return len(versions), max(map(remaining, versions), default=0)

        rank = need.rank
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
            found = self._with_bytes(_users(inside), need, remaining)
            if found is not None and (best is None or wait(found) < wait(best)):
                best = found
        if best == () and not self.fits(need):  # rows and bytes enough, but no slot
            in_use = [v for v, r in self.residents.items() if r.references and not r.is_pinned]
            return (min(in_use, key=remaining),) if in_use else None
        return best

    def _with_bytes(
        self, users: tuple[str, ...] | None, need: Need, remaining: Callable[[str], float]
    ) -> tuple[str, ...] | None:
        """These users, and as many more as hold the bytes that are missing."""
        if users is None:
            return None
        holders = self.residents.items()
        free = self.free_extra_bytes + sum(
            r.need.extra_bytes for v, r in holders if r.is_evictable or v in users
        )
        others = [v for v, r in holders if r.references and not r.is_pinned and v not in users]
        for version in sorted(others, key=remaining):
            if free < need.extra_bytes and self.residents[version].need.extra_bytes:
                users += (version,)
                free += self.residents[version].need.extra_bytes
        return users if free >= need.extra_bytes else None

    def acquire(self, version: str) -> None:
        assert self.is_usable(version)
        self.residents[version].references += 1
        self._touch(version)

    def release(self, version: str) -> None:
        resident = self.residents[version]
        assert resident.references > 0
        resident.references -= 1
        self._touch(version)
        if resident.is_dropped and not resident.references:
            self._evict(version)

    def promise(self) -> int | None:
        """Set a slot aside: a free one, or that of the idle version that is worth least."""
        if self.free_slots:
            slot = self.free_slots.pop(0)
            self._promises[slot] = None
            return slot
        victim = self._least_worth()
        if victim is None:
            return None
        resident = self.residents[victim]
        resident.is_promised = True
        self._promises[resident.slot] = victim
        return resident.slot

    def take(self, slot: int, need: Need) -> int | None:
        """Evict what must go and return the first row for a promised slot.

        If rows and bytes cannot be had beside the versions in use, the promise is cancelled: None.
        """
        assert 0 < need.rank <= self.max_rank
        victim = self._promises[slot]
        movable = [r for r in self.residents.values() if r.is_evictable]
        if victim is not None:
            movable.append(self.residents[victim])
        if not self._has_room(need, movable):
            self.cancel(slot)
            return None
        if victim is not None:
            self._evict(victim)
            self.free_slots.remove(slot)
            self._promises[slot] = None
        while not self._has_room(need, ()):
            idle = self._least_worth()
            assert idle is not None, "there was room without the idle versions"
            self._evict(idle)
        self._taken[slot] = need
        return self.rows.allocate(need.rank)

    def settle(self, version: str, slot: int, row_start: int) -> None:
        """The version's factors are in its rows: it is resident from now on."""
        del self._promises[slot]
        self.residents[version] = Resident(slot, row_start, self._taken.pop(slot), self._clock())
        self._apply_pins()

    def cancel(self, slot: int, row_start: int | None = None) -> None:
        """Give a promised slot back, and the rows that were taken for it."""
        if row_start is not None:
            self.rows.free(row_start)
            del self._taken[slot]
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
        assert self.free_extra_bytes >= 0
        assert self._taken.keys() <= self._promises.keys()
        assert not any(r.references for r in self.residents.values() if r.is_promised)
        assert self._leaves_room({v for v, r in self.residents.items() if r.is_pinned})

    def _evict(self, version: str) -> None:
        resident = self.residents.pop(version)
        assert not resident.references
        self.rows.free(resident.row_start)
        self.free_slots.append(resident.slot)
        self._on_evict(resident.slot)
        self.evictions += 1

    def _touch(self, version: str) -> None:
        self.residents[version].used_s = self._clock()
        self.residents.move_to_end(version)

    def _least_worth(self) -> str | None:
        holdings = [
            Holding(
                version,
                r.need.tenant,
                1,
                r.need.num_bytes,
                r.need.reload_s,
                r.used_s,
                r.is_evictable,
            )
            for version, r in self.residents.items()
        ]
        return least_worth(holdings, self.num_slots, self._clock())

    def _apply_pins(self) -> None:
        pinned = {v for v, r in self.residents.items() if r.is_pinned}
        for version in sorted(self._pins - pinned):
            if self.is_usable(version) and self._leaves_room({*pinned, version}):
                self.residents[version].is_pinned = True
                pinned.add(version)

    def _leaves_room(self, pinned: set[str]) -> bool:
        """Whether one of the largest rank, or half of all extra bytes, could still be loaded."""
        kept = {self.residents[version].row_start for version in pinned}
        movable = self.rows.runs.keys() - kept
        extra_bytes = sum(self.residents[version].need.extra_bytes for version in pinned)
        return (
            len(pinned) < self.num_slots
            and extra_bytes <= self.extra_bytes // 2
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
