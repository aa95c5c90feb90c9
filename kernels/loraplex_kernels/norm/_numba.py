"""RMS normalisation on the CPU."""

import numba
import numpy as np
import torch

from loraplex_kernels._numba import (
    ITEM_BYTES,
    address_of,
    dtype_code,
    keep,
    kernel,
    load_row,
    piece,
    store_row,
    threads_for,
)
from loraplex_kernels._vector import (
    fma,
    load,
    load_as,
    splat,
    store,
    store_as,
    sum_lanes,
)


@piece
def _add(dtype, x, residual, width, tail):
    """residual += x, rounded; 16 at a time, what is left over through a scratch of two vectors."""
    step, whole = 16 * ITEM_BYTES[dtype], width // 16 * 16
    for i in range(whole // 16):
        at = residual + i * step
        store_as(at, dtype, load_as(at, dtype) + load_as(x + i * step, dtype))
    if whole < width:
        end = whole * ITEM_BYTES[dtype]
        load_row(residual + end, dtype, tail, width - whole)
        load_row(x + end, dtype, tail + 64, width - whole)
        store(tail, load(tail) + load(tail + 64))
        store_row(tail, width - whole, residual + end, dtype)


@piece
def _scale(dtype, h, weight, out, width, epsilon, offset, tail):
    step, whole = 16 * ITEM_BYTES[dtype], width // 16 * 16
    end = whole * ITEM_BYTES[dtype]
    squares = splat(np.float32(0))
    for i in range(whole // 16):
        value = load_as(h + i * step, dtype)
        squares = fma(value, value, squares)
    if whole < width:
        load_row(h + end, dtype, tail, width - whole)
        load_row(weight + end, dtype, tail + 64, width - whole)
        squares = fma(load(tail), load(tail), squares)
    mean = sum_lanes(squares) / np.float32(width)
    factor, more = splat(np.float32(1) / np.sqrt(mean + epsilon)), splat(offset)
    for i in range(whole // 16):
        w = load_as(weight + i * step, dtype) + more
        store_as(out + i * step, dtype, load_as(h + i * step, dtype) * factor * w)
    if whole < width:
        store(tail, load(tail) * factor * (load(tail + 64) + more))
        store_row(tail, width - whole, out + end, dtype)


@piece
def _rows(begin, end, dtype, width, x, residual, weight, out, epsilon, offset):
    tail = np.zeros(32, np.float32)
    for t in range(begin, end):
        start = t * width * ITEM_BYTES[dtype]
        h = x + start
        if residual != 0:
            h = residual + start
            _add(dtype, x + start, h, width, address_of(tail))
        _scale(dtype, h, weight, out + start, width, epsilon, offset, address_of(tail))
    keep(tail)


@kernel(f"void({', '.join(['int64'] * 8)}, float32, float32)")
def normalise(dtype, num_tokens, width, x, residual, weight, out, threads, epsilon, offset):
    if threads == 1:
        _rows(0, num_tokens, dtype, width, x, residual, weight, out, epsilon, offset)
        return
    for thread in numba.prange(threads):
        begin, end = num_tokens * thread // threads, num_tokens * (thread + 1) // threads
        _rows(begin, end, dtype, width, x, residual, weight, out, epsilon, offset)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    residual: torch.Tensor | None,
    offset: float,
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
        threads_for(len(x)),
        epsilon,
        offset,
    )
    return out
