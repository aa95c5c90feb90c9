"""Physical blocks of the paged KV cache: who holds them, and which are free."""

from collections import deque


class BlockPool:
    """Reference-counted block ids 0..num_blocks-1; a block is free, cached (nobody holds it) or held."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def allocate(self) -> int:
        """A free block, held once. The caller has checked num_free."""
        block = self._free.popleft()
        assert self._ref_counts[block] == 0
        self._ref_counts[block] = 1
        return block

    def hold(self, block: int) -> None:
        self._ref_counts[block] += 1

    def drop(self, block: int) -> bool:
        """One holder fewer; says whether nobody is left. The caller then frees or caches it."""
        assert self._ref_counts[block] > 0, "double free"
        self._ref_counts[block] -= 1
        return self._ref_counts[block] == 0

    def free(self, block: int) -> None:
        """Return a block that nobody holds."""
        assert self._ref_counts[block] == 0
        self._free.append(block)
