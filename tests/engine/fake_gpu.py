"""A CPU that behaves as a GPU does towards the runner: tables come by copies, graphs are replayed, blocks
move beside the steps."""

from collections.abc import Callable, Sequence

import torch

from loraplex_engine.device import Device, LayerKv, Mark


class RecordedGraph:
    """Computes anew from the same memory, into the same memory."""

    def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
        self._compute = compute
        self.output = compute().clone()
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        self.output.copy_(self._compute())


class Moving:
    """Copies of blocks that are done when somebody waits for them, after those asked for before."""

    def __init__(self, work: Callable[[], object], before: "Moving | None") -> None:
        self._work: Callable[[], object] | None = work
        self._before = before

    def query(self) -> bool:
        return self._work is None

    def synchronize(self) -> None:
        if self._before is not None:
            self._before.synchronize()
        if self._work is not None:
            self._work()
        self._work = self._before = None


class FakeGpu(Device):
    def __init__(self) -> None:
        super().__init__("cpu")
        self.graphs: list[RecordedGraph] = []
        self.waits: list[Mark] = []
        self.num_copies = 0  # of tables
        self._moving: Moving | None = None  # the last

    @property
    def has_own_memory(self) -> bool:
        return True

    @property
    def has_graphs(self) -> bool:
        return True

    @property
    def compiles_at_launch(self) -> bool:
        return True

    @property
    def num_replays(self) -> int:
        return sum(graph.num_replays for graph in self.graphs)

    def staging(self, num_bytes: int) -> torch.Tensor:
        """Full of ones: what is not written names a block, an adapter and a token that exist."""
        self.num_copies += 1
        return torch.ones(-(-num_bytes // 4), dtype=torch.int32).view(torch.uint8)[:num_bytes]

    def capture(self, compute: Callable[[], torch.Tensor]) -> RecordedGraph:
        self.graphs.append(RecordedGraph(compute))
        return self.graphs[-1]

    def copy_blocks(
        self,
        source: Sequence[LayerKv],
        target: Sequence[LayerKv],
        blocks: Sequence[tuple[int, int]],
    ) -> Mark:
        copy = super().copy_blocks
        self._moving = Moving(lambda: copy(source, target, blocks), self._moving)
        return self._moving

    def wait_for(self, mark: Mark) -> None:
        self.waits.append(mark)
        mark.synchronize()
