"""Products with the base model's weights, whose rows do not depend on the batch (bfloat16, CPU).

With AMX the kernel is our own. Without it oneDNN multiplies: it picks its blocking of the inner
dimension by the number of rows, and all numbers but one agree, so a lone row is doubled. float32 is
not promised.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from loraplex_kernels.device import has_amx, implementation

__all__ = ["PackedWeight", "linear", "pack_weight"]

Layout = Literal["plain", "onednn", "amx"]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out_features, in_features]; on the CPU in bfloat16 its elements stand in another order."""

    out_features: int
    in_features: int
    tensor: torch.Tensor
    layout: Layout


def pack_weight(weight: torch.Tensor, layout: Layout | None = None) -> PackedWeight:
    """Prepare a weight for `linear`, in the best layout here; the caller may drop the original."""
    if layout is None:
        is_packed = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
        layout = ("amx" if has_amx() else "onednn") if is_packed else "plain"
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
    if weight.layout == "amx":
        y: torch.Tensor = implementation(__name__, "amx").product(
            x, weight.tensor, weight.out_features
        )
        return y
    rows = torch.cat([x, x]) if len(x) == 1 else x
    y = torch.ops.mkldnn._linear_pointwise(rows, weight.tensor, None, "none", [], "")
    return y[: len(x)]
