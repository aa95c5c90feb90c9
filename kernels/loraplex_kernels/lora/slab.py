"""Where LoRA weights live on the device: one slab per fused projection of a layer.

Ranks are rows of an arena: an adapter of rank r takes r consecutive rows, the same rows in every
slab, so a wide adapter costs its own width and nobody else's. B is stored transposed, so both
factors are rows of contiguous memory. For a CPU's tiles there is `PackedSlab`.
"""

from dataclasses import dataclass

import torch

from loraplex_kernels.memory import sparse_zeros

MAX_SLICES = 3  # of a fused projection: q, k and v


@dataclass(frozen=True, slots=True)
class LoraSlab:
    """Fixed-address weights of all slots for one fused projection (slices: q,k,v or gate,up or one).

    `row_start` is shared by all slabs of a model; `rank` and `scale` belong to this projection, so a
    module that an adapter leaves alone, or adapts with a smaller rank, costs nothing.
    """

    slice_widths: tuple[int, ...]  # output columns of each slice
    a: torch.Tensor  # [num_slices, num_rows, in_features]
    b: tuple[torch.Tensor, ...]  # per slice: [num_rows, slice_width]
    row_start: torch.Tensor  # int32 [num_slots]
    rank: torch.Tensor  # int32 [num_slots, num_slices]; 0: this slice is not adapted
    scale: torch.Tensor  # float32 [num_slots, num_slices]
    max_rank: int = 64  # no slot holds a higher one; a GPU pads to it

    @property
    def in_features(self) -> int:
        return self.a.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        return self.a.dtype

    def put(self, s: int, row: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """Write slice s of an adapter into its rows: a [rank, in_features], b [rank, width]."""
        rows = slice(row, row + len(a))
        self.a[s, rows].copy_(a, non_blocking=True)
        self.b[s][rows].copy_(b, non_blocking=True)

    def factors(self, s: int, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What `put` was given."""
        row, rank = int(self.row_start[slot]), int(self.rank[slot, s])
        return self.a[s, row : row + rank], self.b[s][row : row + rank]

    @staticmethod
    def empty(
        in_features: int,
        slice_widths: tuple[int, ...],
        num_rows: int,
        row_start: torch.Tensor,
        dtype: torch.dtype,
        max_rank: int = 64,
    ) -> "LoraSlab":
        """A slab with no adapter in it, on row_start's device."""
        device, num_slots = row_start.device, row_start.shape[0]

        def rows(*shape: int) -> torch.Tensor:
            if device.type == "cpu":  # rows without an adapter take no memory there
                return sparse_zeros(shape, dtype)
            return torch.zeros(shape, dtype=dtype, device=device)

        return LoraSlab(
            slice_widths=slice_widths,
            a=rows(len(slice_widths), num_rows, in_features),
            b=tuple(rows(num_rows, width) for width in slice_widths),
            row_start=row_start,
            rank=torch.zeros(num_slots, len(slice_widths), dtype=torch.int32, device=device),
            scale=torch.zeros(num_slots, len(slice_widths), dtype=torch.float32, device=device),
            max_rank=max_rank,
        )
