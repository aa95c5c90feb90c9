from hypothesis import given
from hypothesis import strategies as st

from loraplex_adapters.rows import RowAllocator


@given(st.integers(1, 40), st.lists(st.integers(-20, 20).filter(bool), max_size=60))
def test_runs_never_overlap_and_nothing_is_lost(num_rows: int, operations: list[int]) -> None:
    """Positive: allocate so many rows; negative: free the nth run. Compared with a map of rows."""
    allocator = RowAllocator(num_rows)
    owner: list[int | None] = [None] * num_rows
    for operation in operations:
        if operation < 0:
            if allocator.runs:
                start = sorted(allocator.runs)[operation % len(allocator.runs)]
                allocator.free(start)
                owner = [None if o == start else o for o in owner]
            continue
        fits = [
            i
            for i in range(num_rows - operation + 1)
            if all(o is None for o in owner[i : i + operation])
        ]
        start_or_none = allocator.allocate(operation)
        assert start_or_none == (fits[0] if fits else None)
        if start_or_none is not None:
            owner[start_or_none : start_or_none + operation] = [start_or_none] * operation
    for start in list(allocator.runs):
        allocator.free(start)
    assert allocator.find(num_rows) == 0


@given(st.data())
def test_find_without_is_find_after_free(data: st.DataObject) -> None:
    allocator, twin = RowAllocator(32), RowAllocator(32)
    for length in data.draw(st.lists(st.integers(1, 8), max_size=10)):
        assert allocator.allocate(length) == twin.allocate(length)
    freed = [start for start in allocator.runs if data.draw(st.booleans())]
    for start in freed:
        twin.free(start)
    wanted = data.draw(st.integers(1, 32))
    assert allocator.find(wanted, without=freed) == twin.find(wanted)
