"""How an adapter's factors lie for a CPU's tiles: in the order of a step, each as the tiles read it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from loraplex_kernels.device import has_amx, implementation
from loraplex_kernels.lora.slab import MAX_SLICES

INNER = 32  # elements that one product sums
COLUMNS = 16  # of one product


@dataclass(frozen=True, eq=False)
class PackedSlab:
    """One fused projection (slices: q,k,v or gate,up or one) of all slots, on a CPU with AMX tiles.

    `memory` is that of all projections: what a step reads of one adapter lies in one piece.
    """

    in_features: int
    slice_widths: tuple[int, ...]  # output columns of each slice
    memory: torch.Tensor  # bfloat16, flat
    start: torch.Tensor  # int64 [num_slots, num_slices]: where A lies, B behind it
    rank: torch.Tensor  # int32 [num_slots, num_slices]; 0: this slice is not adapted
    scale: torch.Tensor  # float32 [num_slots, num_slices]

    @staticmethod
    def serves(in_features: int, slice_widths: Sequence[int]) -> bool:
        return in_features % INNER == 0 and all(width % COLUMNS == 0 for width in slice_widths)

    @property
    def dtype(self) -> torch.dtype:
        return self.memory.dtype

    @cached_property
    def arguments(self) -> tuple[int, ...]:
        """What a kernel is told of the slab; valid as long as this object lives."""
        widths = (*self.slice_widths, *(0,) * (MAX_SLICES - len(self.slice_widths)))
        tables = (self.start, self.rank, self.scale)
        assert [table.dtype for table in tables] == [torch.int64, torch.int32, torch.float32]
        assert all(each.is_contiguous() for each in (*tables, self.memory))
        assert self.memory.dtype == torch.bfloat16
        assert has_amx()
        addresses = (table.data_ptr() for table in tables)
        memory = self.memory.data_ptr()
        return self.in_features, memory, *widths, len(self.slice_widths), *addresses

    def factors(self, s: int, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A [rank, in_features] and B [rank, width] of a slot's slice, as they were before `pack`."""
        start, rank = int(self.start[slot, s]), int(self.rank[slot, s])
        shapes = (rank, self.in_features), (rank, self.slice_widths[s])
        sizes = [rows * columns for rows, columns in shapes]
        a, b = torch.split(self.memory[start : start + sum(sizes)], sizes)
        return _unpacked(a.view(shapes[0]), _pack_a), _unpacked(b.view(shapes[1]), _pack_b)


def pack(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[rank, in_features] and [rank, width] as a slab holds them: rank * (in_features + width) elements."""
    return torch.cat([_pack_a(a), _pack_b(b)])


def pack_into(
    memory: torch.Tensor, factors: Sequence[tuple[int, torch.Tensor, torch.Tensor]]
) -> None:
    """Write `pack(a, b)` at each (start, a, b); bfloat16, B in any strides."""
    for start, a, b in factors:
        assert {memory.dtype, a.dtype, b.dtype} == {torch.bfloat16}
        assert a.stride(1) == 1
        assert 0 <= start <= len(memory) - a.numel() - b.numel()
    implementation(__package__, "amx").pack_into(memory, factors)


def _pack_a(a: torch.Tensor) -> torch.Tensor:
    """Of each 16 ranks, or the last few, [in_features / 32, 16 pairs, ranks, 2]."""
    blocks = [
        block.view(len(block), a.shape[1] // INNER, INNER // 2, 2).permute(1, 2, 0, 3).reshape(-1)
        for block in torch.split(a, COLUMNS)
    ]
    return torch.cat(blocks)


def _pack_b(b: torch.Tensor) -> torch.Tensor:
    """Of each 32 ranks, or the last few, [width / 16, pairs, 16, 2], then an odd one."""
    blocks = []
    for block in torch.split(b, INNER):
        pairs, width = len(block) // 2, b.shape[1]
        paired = block[: 2 * pairs].reshape(pairs, 2, width // COLUMNS, COLUMNS)
        blocks += [paired.permute(2, 0, 3, 1).reshape(-1), block[2 * pairs :].reshape(-1)]
    return torch.cat(blocks)


def _unpacked(factor: torch.Tensor, pack: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The factor that `pack` has made this of."""
    order = pack(torch.arange(factor.numel()).view_as(factor))
    plain = torch.empty_like(factor).flatten()
    plain[order] = factor.flatten()
    return plain.view_as(factor)
