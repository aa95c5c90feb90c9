"""Products with the base model's weights, whose rows do not depend on the batch (bfloat16, CPU).

oneDNN picks its blocking of the inner dimension by the number of rows. With AMX tiles it is one and
the same up to 32 rows and varies above; without AMX all numbers of rows but one agree. So a product
is cut into at most 32 rows, respectively a single row is doubled, and a row's bits depend on the
row alone. float32 is not promised.
"""

from dataclasses import dataclass

import torch

AMX_ROWS = 32


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out_features, in_features], on the CPU in bfloat16 reordered for oneDNN."""

    out_features: int
    in_features: int
    tensor: torch.Tensor
    is_packed: bool


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """Prepare a weight for `linear`; the caller may drop the original."""
    out_features, in_features = weight.shape
    is_packed = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    tensor = torch.ops.mkldnn._reorder_linear_weight(weight) if is_packed else weight
    return PackedWeight(out_features, in_features, tensor, is_packed)


def _product(x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    if not weight.is_packed:
        return torch.nn.functional.linear(x, weight.tensor)
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight.tensor, None, "none", [], "")
    return y


def has_amx() -> bool:
    """Whether oneDNN may use AMX tiles here (ONEDNN_MAX_CPU_ISA may forbid them: that is safe)."""
    return torch.cpu._is_amx_tile_supported()


def linear(x: torch.Tensor, weight: PackedWeight) -> torch.Tensor:
    """x @ weight^T; in bfloat16 on the CPU each row's bits are independent of the other rows.

    x: [num_rows, in_features].
    """
    num_rows = x.shape[0]
    if not weight.is_packed:
        return _product(x, weight)
    if num_rows == 1:
        return _product(torch.cat([x, x]), weight)[:1]
    if num_rows <= AMX_ROWS or not has_amx():
        return _product(x, weight)
    out = torch.empty(num_rows, weight.out_features, dtype=x.dtype)
    for start in range(0, num_rows, AMX_ROWS):
        part = x[start : start + AMX_ROWS]
        out[start : start + AMX_ROWS] = linear(part, weight)
    return out
