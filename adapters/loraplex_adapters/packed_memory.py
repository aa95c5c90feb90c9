"""Where a CPU with tiles keeps its adapters: one memory, each adapter in one piece."""

from collections.abc import Mapping, Sequence

import torch

from loraplex_adapters.layout import ProjectionSpec, row_elements
from loraplex_adapters.loader import AdapterWeights
from loraplex_kernels.device import has_amx
from loraplex_kernels.lora import PackedSlab, pack_into
from loraplex_kernels.memory import sparse_zeros


class PackedMemory:
    """Rows of one rank of some projections; an adapter's factors lie in its rows in a step's order.

    In huge pages: rows that no adapter has taken take no memory but the rest of one.
    """

    def __init__(self, projections: Sequence[ProjectionSpec], num_rows: int) -> None:
        self._projections = projections
        self._row_elements = row_elements(projections)
        shape = (num_rows * self._row_elements,)
        self.elements = sparse_zeros(shape, torch.bfloat16, is_huge=True)

    @staticmethod
    def serves(projection: ProjectionSpec, dtype: torch.dtype, device: torch.device) -> bool:
        is_served = PackedSlab.serves(projection.in_features, projection.slice_widths)
        return is_served and dtype == torch.bfloat16 and device.type == "cpu" and has_amx()

    def put(self, weights: AdapterWeights, row_start: int) -> Mapping[str, int]:
        """By module, where its factors lie now; those that the adapter leaves alone lie nowhere."""
        at, starts, factors = row_start * self._row_elements, dict[str, int](), []
        for projection in self._projections:
            for piece in projection.slices:
                found = weights.modules.get(piece.module)
                if found is not None:
                    starts[piece.module] = at
                    factors.append((at, found.a, found.b))
                    at += found.a.numel() + found.b.numel()
        assert at <= (row_start + weights.rank) * self._row_elements
        pack_into(self.elements, factors)
        return starts
