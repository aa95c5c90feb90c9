"""What a decoder is made of: projections that carry LoRA, norms, scales."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from loraplex_adapters.slot_extras import SlotExtras
from loraplex_engine.model.extras import (
    RowExtras,
    finish_columns,
    own_norms,
    replace_columns,
    rows_with_extras,
)
from loraplex_kernels.linear import PackedWeight, linear
from loraplex_kernels.lora import Int32Array, LoraSegments, Slab, apply_lora
from loraplex_kernels.norm import rms_norm


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapters of some rows of a step: which row has which slot, and the weights of the slots."""

    segments: LoraSegments
    slabs: Mapping[str, Slab]
    extras: Mapping[int, SlotExtras]
    device: torch.device
    own: tuple[RowExtras, ...]  # mostly empty: then nothing is done for it

    @staticmethod
    def of(
        segments: LoraSegments | None,
        slabs: Mapping[str, Slab],
        extras: Mapping[int, SlotExtras],
        device: torch.device,
    ) -> "Lora | None":
        """None where no row has an adapter."""
        if segments is None:
            return None
        own = rows_with_extras(segments, extras, device)
        return Lora(segments, slabs, extras, device, own)

    def of_rows(self, rows: Int32Array) -> "Lora | None":
        """The adapters of a choice of these rows, in its order; None if no row has one."""
        return Lora.of(self.segments.of_rows(rows), self.slabs, self.extras, self.device)


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
        if lora is None:
            return y
        if lora.own:
            replace_columns(y, x, self.bias, self.name, lora.own)
        if self.name in lora.slabs:
            apply_lora(y, x, lora.slabs[self.name], lora.segments)
        if lora.own:
            finish_columns(y, self.name, lora.own)
        return y


@dataclass(frozen=True, slots=True)
class RmsNorm:
    name: str  # the checkpoint's
    weight: torch.Tensor
    epsilon: float
    offset: float = 0.0  # added to the weight

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, lora: Lora | None = None
    ) -> torch.Tensor:
        """With a residual, x is added to it in place, and the sum is what is normalised."""
        y = rms_norm(x, self.weight, self.epsilon, residual, self.offset)
        if lora is not None and lora.own:
            sums = x if residual is None else residual
            for rows, weight in own_norms(self.name, lora.own):
                y[rows] = rms_norm(sums[rows], weight, self.epsilon, None, self.offset)
        return y

    def of_heads(self, heads: torch.Tensor, lora: Lora | None = None) -> torch.Tensor:
        """Each head of [num_rows, heads, dim] by itself, or all together: as wide as the weight is."""
        width = len(self.weight)
        y = self(heads.contiguous().view(-1, width)).view(heads.shape)
        if lora is not None and lora.own:
            for rows, weight in own_norms(self.name, lora.own):
                flat = heads[rows].contiguous().view(-1, width)
                own = rms_norm(flat, weight, self.epsilon, None, self.offset)
                y[rows] = own.view(-1, *heads.shape[1:])
        return y


@dataclass(frozen=True, slots=True)
class NoNorm:
    """Where a family has no norm: the residual sum alone."""

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, lora: Lora | None = None
    ) -> torch.Tensor:
        """x, or x added to the residual in place: the result is then the residual itself."""
        return x if residual is None else residual.add_(x)


@dataclass(frozen=True, slots=True)
class Scale:
    factor: float

    def __call__(
        self, x: torch.Tensor, residual: None = None, lora: Lora | None = None
    ) -> torch.Tensor:
        """In place."""
        return x.mul_(self.factor)
