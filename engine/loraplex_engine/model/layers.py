"""What a decoder is made of: projections that carry LoRA, norms, rotary tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from loraplex_engine.model.config import Rope
from loraplex_kernels.linear import PackedWeight, linear
from loraplex_kernels.lora import LoraSegments, LoraSlab, apply_lora
from loraplex_kernels.norm import rms_norm


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapters of some rows of a step: which row has which slot, and the weights of the slots."""

    segments: LoraSegments
    slabs: Mapping[str, LoraSlab]


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear map, fused from one or more of the checkpoint's, that adapters may change."""

    name: str
    weight: PackedWeight
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, lora: Lora | None) -> torch.Tensor:
        y = linear(x, self.weight)
        if self.bias is not None:
            y += self.bias
        if lora is not None and self.name in lora.slabs:
            apply_lora(y, x, lora.slabs[self.name], lora.segments)
        return y


@dataclass(frozen=True, slots=True)
class RmsNorm:
    weight: torch.Tensor
    epsilon: float

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """With a residual, x is added to it in place, and the sum is what is normalised."""
        return rms_norm(x, self.weight, self.epsilon, residual)


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """Cosines and sines of every position: float32 [max_position, head_dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor

    @staticmethod
    def build(rope: Rope, head_dim: int, max_position: int, device: torch.device) -> "RotaryTable":
        frequencies = _inverse_frequencies(rope, head_dim)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)
        return RotaryTable(angles.cos().to(device), angles.sin().to(device))


def _inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind != "llama3":
        return frequencies
    # Llama 3: long wavelengths are stretched, short ones kept, those between interpolated.
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_max_position / wavelengths
    span = rope.high_freq_factor - rope.low_freq_factor
    kept = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / rope.factor
