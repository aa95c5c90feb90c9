"""Where a CPU with tiles keeps its adapters: one memory, each adapter in one piece."""

from collections.abc import Sequence

import torch

from loraplex_adapters.layout import ProjectionSpec, row_elements
from loraplex_adapters.loader import AdapterWeights
from loraplex_kernels.device import has_amx
from loraplex_kernels.lora import PackedSlab, pack
from loraplex_kernels.memory import dense_zeros


class PackedMemory:
    """Rows of one rank of all projections; an adapter's factors lie in its rows in a step's order.

    In huge pages: of rows that no adapter has taken, they take no memory but the rest of a page.
    """

    def __init__(self, projections: Sequence[ProjectionSpec], num_rows: int) -> None:
        self._projections = projections
        self._row_elements = row_elements(projections)
        self.elements = dense_zeros((num_rows * self._row_elements,), torch.bfloat16)

    @staticmethod
    def serves(
        projections: Sequence[ProjectionSpec], dtype: torch.dtype, device: torch.device
    ) -> bool:
        is_cpu = device.type == "cpu" and has_amx()
        shapes = ((each.in_features, each.slice_widths) for each in projections)
        return is_cpu and dtype == torch.bfloat16 and all(PackedSlab.serves(*s) for s in shapes)

    def put(self, weights: AdapterWeights, row_start: int) -> list[int]:
        """Where each slice lies now; those that the adapter leaves alone lie nowhere."""
        at, starts = row_start * self._row_elements, list[int]()
        for projection in self._projections:
            for piece in projection.slices:
                starts.append(at)
                factors = weights.modules.get(piece.module)
                if factors is not None:
                    packed = pack(factors.a, factors.b)
                    self.elements[at : at + len(packed)].copy_(packed)
                    at += len(packed)
        assert at <= (row_start + weights.rank) * self._row_elements
        return starts
