"""Grouped LoRA: y += scale * (x A^T) B, each token with its own adapter, one call per projection."""

import torch

from loraplex_kernels.lora import reference
from loraplex_kernels.lora.segments import LoraSegments, build_segments
from loraplex_kernels.lora.slab import LoraSlab

__all__ = ["LoraSegments", "LoraSlab", "apply_lora", "build_segments"]


def apply_lora(y: torch.Tensor, x: torch.Tensor, slab: LoraSlab, segments: LoraSegments) -> None:
    """Add each token's adapter to y in place; tokens in no segment are untouched.

    y: [num_tokens, sum(slice_widths)], x: [num_tokens, in_features], both contiguous in their last
    dimension. The sum of a token does not depend on its neighbours.
    """
    token_slots = torch.full((x.shape[0],), -1, dtype=torch.int32)
    for slot, start, length in zip(
        segments.chunk_slot, segments.chunk_start, segments.chunk_length, strict=True
    ):
        token_slots[torch.from_numpy(segments.permutation[start : start + length])] = int(slot)
    y.copy_(reference.apply_lora(y, x, slab, token_slots))
