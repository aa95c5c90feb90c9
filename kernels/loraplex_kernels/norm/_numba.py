"""RMS normalisation on the CPU."""

import numba
import numpy as np
import torch

from loraplex_kernels._numba import (
    ITEM_BYTES,
    address_of,
    dtype_code,
    kernel,
    load_row,
    piece,
    pointer_f32,
    store_row,
)


@piece
def _row(dtype, x, residual, weight, out, width, epsilon, scratch):
    row = address_of(scratch)
    h, other = pointer_f32(row), pointer_f32(row + width * 4)
    load_row(x, dtype, row, width)
    if residual != 0:
        load_row(residual, dtype, row + width * 4, width)
        for i in range(width):
            h[i] += other[i]
        store_row(row, width, residual, dtype)
        load_row(residual, dtype, row, width)
    load_row(weight, dtype, row + width * 4, width)
    squares = np.float32(0)
    for i in range(width):
        squares += h[i] * h[i]
    factor = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
    for i in range(width):
        h[i] = h[i] * factor * other[i]
    store_row(row, width, out, dtype)


@piece
def _token(t, dtype, x, residual, weight, out, width, epsilon):
    offset = t * width * ITEM_BYTES[dtype]
    scratch = np.empty(2 * width, np.float32)
    with_residual = residual + offset if residual != 0 else 0
    _row(dtype, x + offset, with_residual, weight, out + offset, width, epsilon, scratch)


@kernel(f"void({', '.join(['int64'] * 7)}, float32)")
def normalise(dtype, num_tokens, width, x, residual, weight, out, epsilon):
    for t in numba.prange(num_tokens):
        _token(t, dtype, x, residual, weight, out, width, epsilon)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None
) -> torch.Tensor:
    """As loraplex_kernels.norm.rms_norm, on the CPU."""
    out = torch.empty_like(x)
    normalise(
        dtype_code(x.dtype),
        *x.shape,
        x.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        epsilon,
    )
    return out
