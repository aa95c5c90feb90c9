"""Which rows of the slab are whose: first fit, neighbours merge when they are freed."""

from collections.abc import Container


class RowAllocator:
    """Runs of consecutive rows, known by their first row."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.runs: dict[int, int] = {}  # first row -> length

    def find(self, length: int, *, without: Container[int] = ()) -> int | None:
        """The first row of the first gap that is long enough, as if the runs `without` were free."""
        end = 0
        for start, used in sorted(self.runs.items()):
            if start in without:
                continue
            if start - end >= length:
                return end
            end = start + used
        return end if self.num_rows - end >= length else None

    def allocate(self, length: int) -> int | None:
        """Take a run; None if no gap is long enough."""
        assert length > 0
        start = self.find(length)
        if start is not None:
            self.runs[start] = length
        return start

    def free(self, start: int) -> None:
        del self.runs[start]
