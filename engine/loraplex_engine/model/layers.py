"""What a decoder is made of: projections that carry LoRA, norms, scales."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from loraplex_kernels.linear import PackedWeight, linear
from loraplex_kernels.lora import Int32Array, LoraSegments, LoraSlab, apply_lora
from loraplex_kernels.norm import rms_norm


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapters of some rows of a step: which row has which slot, and the weights of the slots."""

    segments: LoraSegments
    slabs: Mapping[str, LoraSlab]

    def of_rows(self, rows: Int32Array) -> "Lora | None":
        """The adapters of a choice of these rows, in its order; None if no row has one."""
        segments = self.segments.of_rows(rows)
        return None if segments is None else Lora(segments, self.slabs)


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
    offset: float = 0.0  # added to the weight

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """With a residual, x is added to it in place, and the sum is what is normalised."""
        return rms_norm(x, self.weight, self.epsilon, residual, self.offset)

    def of_heads(self, heads: torch.Tensor) -> torch.Tensor:
        """Each head of [num_rows, heads, dim] by itself, or all together: as wide as the weight is."""
        return self(heads.contiguous().view(-1, len(self.weight))).view(heads.shape)


@dataclass(frozen=True, slots=True)
class NoNorm:
    """Where a family has no norm: the residual sum alone."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x, or x added to the residual in place: the result is then the residual itself."""
        return x if residual is None else residual.add_(x)


@dataclass(frozen=True, slots=True)
class Scale:
    factor: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """In place."""
        return x.mul_(self.factor)
