"""Products with the base model's weights, whose rows do not depend on the batch (bfloat16, CPU).

With AMX the kernel is our own. Without it oneDNN multiplies: it picks its blocking of the inner
dimension by the number of rows, and all numbers but one agree, so a lone row is doubled. float32 is
not promised.

A weight may be kept as int8 with a scale for each output. Its products are those of the numbers that
it stands for: nothing else is rounded.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from loraplex_kernels.device import has_amx, implementation

__all__ = ["Layout", "PackedWeight", "int8_layout", "linear", "pack_weight", "quantize"]

Layout = Literal["plain", "onednn", "amx", "int8", "int8_amx"]
QUANTIZED_ROWS = 64  # at once, in float32


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out_features, in_features]; on the CPU in bfloat16 its elements stand in another order."""

    out_features: int
    in_features: int
    tensor: torch.Tensor
    layout: Layout
    scale: torch.Tensor | None = None  # float32 [out_features, in whole panels], of int8

    @property
    def num_bytes(self) -> int:
        return self.tensor.nbytes + (0 if self.scale is None else self.scale.nbytes)


def int8_layout(dtype: torch.dtype) -> Layout:
    """Where int8 weights are multiplied on this CPU with inputs of a type."""
    return "int8_amx" if dtype == torch.bfloat16 and has_amx() else "int8"


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric, to the nearest: int8 [out_features, in_features] and float32 [out_features]."""
    values = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(weight.shape[0])
    for first in range(0, weight.shape[0], QUANTIZED_ROWS):
        rows = slice(first, first + QUANTIZED_ROWS)
        exact = weight[rows].float()
        largest = exact.abs().amax(1)
        scale[rows] = torch.where(largest > 0, largest / 127, 1.0)
        values[rows] = (exact / scale[rows, None]).round_().to(torch.int8)
    return values, scale


def pack_weight(weight: torch.Tensor, layout: Layout | None = None) -> PackedWeight:
    """Prepare a weight for `linear`, in the best layout here; the caller may drop the original."""
    if layout is None:
        is_packed = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
        layout = ("amx" if has_amx() else "onednn") if is_packed else "plain"
    if layout in ("int8", "int8_amx"):
        values, scale = quantize(weight)
        kind = "amx" if layout == "int8_amx" else "cpu"
        packed, scale = implementation(__name__, kind).pack_int8(values, scale)
        return PackedWeight(weight.shape[0], weight.shape[1], packed, layout, scale)
    if layout == "amx":
        tensor = implementation(__name__, "amx").pack(weight)
    elif layout == "onednn":
        tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    else:
        tensor = weight
    return PackedWeight(weight.shape[0], weight.shape[1], tensor, layout)


def linear(x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    """x @ weight^T; in bfloat16 on the CPU each row's bits are independent of the other rows.

    x: [num_rows, in_features].
    """
    if weight.layout == "plain":
        return F.linear(x, weight.tensor)
    if weight.scale is not None:
        kind = "amx" if weight.layout == "int8_amx" else "cpu"
        product: torch.Tensor = implementation(__name__, kind).product_int8(
            x, weight.tensor, weight.scale, weight.out_features
        )
        return product
    if weight.layout == "amx":
        y: torch.Tensor = implementation(__name__, "amx").product(
            x, weight.tensor, weight.out_features
        )
        return y
    rows = torch.cat([x, x]) if len(x) == 1 else x
    y = torch.ops.mkldnn._linear_pointwise(rows, weight.tensor, None, "none", [], "")
    return y[: len(x)]
