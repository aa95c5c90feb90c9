"""Grouped LoRA: y += scale * (x A^T) B, each token with its own adapter, one call per projection."""

import torch

from loraplex_kernels.device import implementation
from loraplex_kernels.lora.packed import PackedSlab, pack, pack_into
from loraplex_kernels.lora.segments import Int32Array, LoraSegments, build_segments
from loraplex_kernels.lora.slab import LoraSlab

__all__ = [
    "Int32Array",
    "LoraSegments",
    "LoraSlab",
    "PackedSlab",
    "Slab",
    "apply_lora",
    "build_segments",
    "pack",
    "pack_into",
]

Slab = LoraSlab | PackedSlab


def apply_lora(y: torch.Tensor, x: torch.Tensor, slab: Slab, segments: LoraSegments) -> None:
    """Add each token's adapter to y in place; tokens in no segment are untouched.

    y: [num_tokens, sum(slice_widths)], x: [num_tokens, in_features], both contiguous in their last
    dimension. The sum of a token does not depend on its neighbours.
    """
    assert y.shape == (x.shape[0], sum(slab.slice_widths))
    assert x.shape[1] == slab.in_features
    assert y.stride(1) == 1
    assert x.stride(1) == 1
    assert x.dtype == y.dtype == slab.dtype
    kind = "amx" if isinstance(slab, PackedSlab) else y.device.type
    implementation(__name__, kind).apply_lora(y, x, slab, segments)
