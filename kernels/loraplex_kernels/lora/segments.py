"""The chunk table: which tokens of a step belong to which slot. Built with numpy, once a step."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class LoraSegments:
    """Tokens sorted by slot and cut into chunks of one slot each; base-model tokens are in none."""

    permutation: Int32Array  # [num_lora_tokens] token indices, sorted by slot, stable
    chunk_slot: Int32Array  # [num_chunks]
    chunk_start: Int32Array  # [num_chunks] into permutation
    chunk_length: Int32Array  # [num_chunks]; 0: nothing to do
    max_chunk: int = 16  # no chunk is longer
    on_device: tuple[torch.Tensor, ...] | None = None  # the four, where a GPU reads them

    @property
    def num_chunks(self) -> int:
        return len(self.chunk_slot)

    @cached_property
    def addresses(self) -> tuple[int, int, int, int]:
        """Where the four arrays lie; valid as long as this object lives."""
        arrays = (self.permutation, self.chunk_slot, self.chunk_start, self.chunk_length)
        assert all(a.dtype == np.int32 and a.flags.c_contiguous for a in arrays)
        permutation, slot, start, length = (a.ctypes.data for a in arrays)
        return permutation, slot, start, length

    def of_rows(self, rows: Int32Array) -> "LoraSegments | None":
        """Segments of a choice of the rows that these are of, in its order; rows may recur."""
        slots = np.full(max(rows.max(), self.permutation.max()) + 1, -1, np.int32)
        slots[self.permutation] = np.repeat(self.chunk_slot, self.chunk_length)
        return build_segments(slots[rows], self.max_chunk)


def build_segments(token_slots: Int32Array, max_chunk: int = 16) -> LoraSegments | None:
    """Segments of a step from each token's slot (-1: base model); None if no token has an adapter."""
    order = np.argsort(token_slots, kind="stable").astype(np.int32)
    order = order[np.searchsorted(token_slots[order], 0) :]
    if len(order) == 0:
        return None
    slots = token_slots[order]
    run_start = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1]])
    run_length = np.diff(np.r_[run_start, len(slots)])
    chunks_per_run = -(-run_length // max_chunk)
    first_chunk = np.cumsum(chunks_per_run) - chunks_per_run
    nth = np.arange(chunks_per_run.sum()) - np.repeat(first_chunk, chunks_per_run)
    start = np.repeat(run_start, chunks_per_run) + nth * max_chunk
    length = np.minimum(max_chunk, np.repeat(run_length, chunks_per_run) - nth * max_chunk)
    return LoraSegments(
        permutation=order,
        chunk_slot=np.repeat(slots[run_start], chunks_per_run).astype(np.int32),
        chunk_start=start.astype(np.int32),
        chunk_length=length.astype(np.int32),
        max_chunk=max_chunk,
    )
