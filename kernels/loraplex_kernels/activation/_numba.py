"""The gated activation on the CPU."""

import numba
import numpy as np
import torch

from loraplex_kernels._numba import (
    ITEM_BYTES,
    address_of,
    dtype_code,
    exp,
    kernel,
    load_row,
    piece,
    pointer_f32,
    store_row,
)


@piece
def _row(dtype, gate_up, out, width, scratch):
    row = address_of(scratch)
    gate, up = pointer_f32(row), pointer_f32(row + width * 4)
    load_row(gate_up, dtype, row, 2 * width)
    for i in range(width):
        # exp(-|x|) only: it cannot overflow
        e = exp(-abs(gate[i]))
        numerator = np.float32(1) if gate[i] >= 0 else e
        up[i] *= gate[i] * (numerator / (np.float32(1) + e))
    store_row(row + width * 4, width, out, dtype)


@piece
def _token(t, dtype, gate_up, out, width):
    item = ITEM_BYTES[dtype]
    scratch = np.empty(2 * width, np.float32)
    _row(dtype, gate_up + t * 2 * width * item, out + t * width * item, width, scratch)


@kernel(f"void({', '.join(['int64'] * 5)})")
def activate(dtype, num_tokens, width, gate_up, out):
    for t in numba.prange(num_tokens):
        _token(t, dtype, gate_up, out, width)


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.activation.silu_and_multiply, on the CPU."""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype)
    activate(dtype_code(gate_up.dtype), num_tokens, width, gate_up.data_ptr(), out.data_ptr())
    return out
