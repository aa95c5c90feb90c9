from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from loraplex_adapters.residents import Need
from loraplex_adapters.slots import SlotTable

VERSIONS = [f"v{i}" for i in range(6)]
MAX_RANK = 16
EXTRA_BYTES = 10


def load(table: SlotTable, version: str, rank: int, extra_bytes: int = 0, **need: Any) -> bool:
    slot = table.promise()
    if slot is None:
        return False
    row_start = table.take(slot, Need(rank, extra_bytes, **need))
    if row_start is not None:
        table.settle(version, slot, row_start)
    return row_start is not None


def test_least_recently_used_idle_version_goes_first() -> None:
    table = SlotTable(3, 48, MAX_RANK)
    for version in ("a", "b", "c"):
        assert load(table, version, 4)
    table.acquire("a")
    table.release("a")
    table.acquire("b")

    assert load(table, "d", 4)
    assert load(table, "e", 4)

    assert set(table.residents) == {"b", "d", "e"}


def test_what_is_cheap_to_bring_back_goes_before_what_is_older() -> None:
    now = iter(range(100))
    table = SlotTable(2, 32, MAX_RANK, clock=lambda: float(next(now)))
    load(table, "slow", 4, reload_s=100.0)
    load(table, "fast", 4, reload_s=0.01)
    assert load(table, "new", 4)
    assert set(table.residents) == {"slow", "new"}


def test_large_versions_go_before_small_ones_that_cost_as_much() -> None:
    table = SlotTable(2, 32, MAX_RANK, clock=lambda: 0.0)
    load(table, "small", 4, num_bytes=10)
    load(table, "large", 4, num_bytes=1000)
    assert load(table, "new", 4)
    assert set(table.residents) == {"small", "new"}


def test_tenant_with_more_than_its_share_of_slots_loses_its_own() -> None:
    table = SlotTable(4, 64, MAX_RANK)
    load(table, "other", 4, tenant="globex", reload_s=0.001)
    for version in ("a", "b", "c"):
        load(table, version, 4, tenant="acme", reload_s=100.0)
    assert load(table, "d", 4, tenant="acme")
    assert "other" in table.residents


def test_bytes_beside_the_slabs_are_a_budget() -> None:
    table = SlotTable(3, 48, MAX_RANK, extra_bytes=10)
    assert load(table, "a", 4, 6)
    table.acquire("a")
    assert table.fits(Need(4, 4))
    assert not table.fits(Need(4, 5))
    assert table.blockers(Need(4, 5)) == ("a",)
    assert not load(table, "b", 4, 5)
    table.release("a")
    assert load(table, "b", 4, 5)
    assert set(table.residents) == {"b"}


def test_promised_version_stays_until_its_successor_is_validated() -> None:
    table = SlotTable(1, 16, MAX_RANK)
    load(table, "a", 4)
    slot = table.promise()
    assert slot == 0
    assert not table.is_usable("a")
    assert "a" in table.residents

    table.cancel(slot)

    assert table.is_usable("a")


def test_wide_adapter_takes_the_rows_of_several_idle_ones() -> None:
    table = SlotTable(4, 16, MAX_RANK)
    for version in ("a", "b", "c", "d"):
        assert load(table, version, 4)
    assert table.fits(Need(16))
    assert load(table, "wide", 16)
    assert list(table.residents) == ["wide"]
    assert len(table.free_slots) == 3


def test_wide_adapter_does_not_fit_beside_a_version_in_use() -> None:
    table = SlotTable(2, 16, MAX_RANK)
    load(table, "a", 4)
    table.acquire("a")
    assert table.fits(Need(12))
    assert not table.fits(Need(13))
    assert not load(table, "wide", 13)
    assert table.is_usable("a")
    assert table.free_slots == [1]


def test_wide_adapter_is_blocked_by_the_fewest_neighbours() -> None:
    table = SlotTable(5, 20, MAX_RANK)
    for version in ("a", "b", "c", "d"):
        load(table, version, 4)
        if version != "c":
            table.acquire(version)
    assert table.blockers(Need(4)) == ()
    assert table.blockers(Need(8)) == ("b",)
    assert table.blockers(Need(9)) == ("d",)
    assert table.blockers(Need(13)) == ("b", "d")
    table.release("b")
    table.release("d")
    assert load(table, "wide", 13)
    assert table.is_usable("a")


def test_pin_leaves_room_for_the_largest_adapter() -> None:
    table = SlotTable(3, 40, MAX_RANK)
    for version in ("a", "b", "c"):
        load(table, version, 12)
        table.pin(version, True)
    assert [r.is_pinned for r in table.residents.values()] == [True, True, False]
    assert load(table, "wide", MAX_RANK)
    assert set(table.residents) == {"a", "b", "wide"}


def test_last_slot_is_never_pinned() -> None:
    table = SlotTable(1, 16, MAX_RANK)
    load(table, "a", 4)
    table.pin("a", True)
    assert load(table, "b", 4)


def test_dropped_version_leaves_with_its_last_reference() -> None:
    table = SlotTable(1, 16, MAX_RANK)
    load(table, "a", 4)
    table.acquire("a")
    table.drop("a")
    assert not table.is_usable("a")
    assert not table.fits(Need(4))
    table.release("a")
    assert table.free_slots == [0]
    assert not table.rows.runs


def test_engine_without_slots_loads_nothing() -> None:
    table = SlotTable(0, 0, MAX_RANK)
    assert not table.fits(Need(1))
    assert table.promise() is None
    table.check_integrity()


def test_release_without_acquire_is_a_bug() -> None:
    table = SlotTable(1, 16, MAX_RANK)
    load(table, "a", 4)
    with pytest.raises(AssertionError):
        table.release("a")


needs = st.builds(
    Need,
    st.integers(1, MAX_RANK),
    st.sampled_from([0, 0, 1, 4, EXTRA_BYTES]),
    st.integers(1, 9),
    st.sampled_from([0.1, 1.0]),
    st.sampled_from(["acme", "globex"]),
)


class SlotMachine(RuleBasedStateMachine):
    """Any order of operations keeps every slot and row owned once, and loses none."""

    @initialize(num_slots=st.integers(1, 4), extra_rows=st.integers(0, 24))
    def start(self, num_slots: int, extra_rows: int) -> None:
        self.table = SlotTable(num_slots, MAX_RANK + extra_rows, MAX_RANK, EXTRA_BYTES)
        self.references = dict.fromkeys(VERSIONS, 0)
        self.promised: list[tuple[str, int]] = []
        self.taken: list[tuple[str, int, int]] = []

    @property
    def absent(self) -> list[str]:
        loading = {entry[0] for entry in (*self.promised, *self.taken)}
        return [v for v in VERSIONS if v not in self.table.residents and v not in loading]

    @precondition(lambda self: self.absent)
    @rule(data=st.data())
    def promise(self, data: st.DataObject) -> None:
        expected = self.table.fits(None)
        slot = self.table.promise()
        assert (slot is not None) == expected
        if slot is not None:
            self.promised.append((data.draw(st.sampled_from(self.absent)), slot))

    @precondition(lambda self: self.promised)
    @rule(need=needs)
    def take(self, need: Need) -> None:
        version, slot = self.promised.pop(0)
        row_start = self.table.take(slot, need)
        if row_start is not None:
            self.taken.append((version, slot, row_start))

    @precondition(lambda self: self.promised)
    @rule()
    def cancel(self) -> None:
        self.table.cancel(self.promised.pop()[1])

    @precondition(lambda self: self.taken)
    @rule(succeeds=st.booleans())
    def settle(self, succeeds: bool) -> None:
        version, slot, row_start = self.taken.pop(0)
        if succeeds:
            self.table.settle(version, slot, row_start)
        else:
            self.table.cancel(slot, row_start)

    @rule(version=st.sampled_from(VERSIONS))
    def acquire(self, version: str) -> None:
        if self.table.is_usable(version):
            self.table.acquire(version)
            self.references[version] += 1

    @rule(version=st.sampled_from(VERSIONS))
    def release(self, version: str) -> None:
        if self.references[version]:
            self.references[version] -= 1
            self.table.release(version)

    @rule(need=needs)
    def make_room(self, need: Need) -> None:
        """When the blockers have ended, it fits; and it did not as long as there were some."""
        blockers = self.table.blockers(need)
        if blockers is None:
            return
        assert self.table.fits(need) == (not blockers)
        for version in blockers:
            while self.references[version]:
                self.release(version)
        assert self.table.fits(need)

    @rule(version=st.sampled_from(VERSIONS))
    def drop(self, version: str) -> None:
        self.table.drop(version)

    @rule(version=st.sampled_from(VERSIONS), pinned=st.booleans())
    def pin(self, version: str, pinned: bool) -> None:
        self.table.pin(version, pinned)

    @invariant()
    def holds_together(self) -> None:
        self.table.check_integrity()
        for version, count in self.references.items():
            held = self.table.residents.get(version)
            assert count == (held.references if held else 0)

    def teardown(self) -> None:
        """When all that was started has ended, everything can be had again."""
        if not hasattr(self, "table"):
            return
        for _, slot in self.promised:
            self.table.cancel(slot)
        for _, slot, row_start in self.taken:
            self.table.cancel(slot, row_start)
        for version, count in self.references.items():
            for _ in range(count):
                self.table.release(version)
            self.table.drop(version)
        assert sorted(self.table.free_slots) == list(range(self.table.num_slots))
        assert not self.table.rows.runs


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
