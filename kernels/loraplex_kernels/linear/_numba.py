"""Products with int8 weights on any CPU: each output sums its inner dimension in one order.

Weights lie as [panels, in_features, 16 columns]; a step of the inner dimension is one vector.
"""

import numba
import numpy as np
import torch
import torch.nn.functional as F

from loraplex_kernels._numba import (
    BF16,
    ITEM_BYTES,
    address_of,
    dtype_code,
    float_of_bf16,
    keep,
    kernel,
    piece,
    pointer_f32,
    pointer_u16,
    store_row,
)
from loraplex_kernels._vector import fma, load, load_int8, splat, store

PANEL = 16


@piece
def _value(row, i, dtype):
    if dtype == BF16:
        return float_of_bf16(pointer_u16(row)[i])
    return pointer_f32(row)[i]


@piece
def _one_row(x, dtype, weight, k, scale, sums):
    total = splat(np.float32(0))
    for i in range(k):
        total = fma(splat(_value(x, i, dtype)), load_int8(weight + i * PANEL), total)
    store(sums, total * load(scale))


@piece
def _four_rows(x, x_bytes, dtype, weight, k, scale, sums):
    s0 = s1 = s2 = s3 = splat(np.float32(0))
    for i in range(k):
        column = load_int8(weight + i * PANEL)
        s0 = fma(splat(_value(x, i, dtype)), column, s0)
        s1 = fma(splat(_value(x + x_bytes, i, dtype)), column, s1)
        s2 = fma(splat(_value(x + 2 * x_bytes, i, dtype)), column, s2)
        s3 = fma(splat(_value(x + 3 * x_bytes, i, dtype)), column, s3)
    factor = load(scale)
    store(sums, s0 * factor)
    store(sums + 64, s1 * factor)
    store(sums + 128, s2 * factor)
    store(sums + 192, s3 * factor)


@piece
def _panels(begin, end, dtype, x, x_bytes, num_rows, k, weight, scale, y, y_bytes, out_features):
    scratch = np.empty(4 * PANEL, np.float32)
    sums, item = address_of(scratch), ITEM_BYTES[dtype]
    fours = num_rows & ~3
    for panel in range(begin, end):
        columns, factor = weight + panel * k * PANEL, scale + panel * PANEL * 4
        width = min(PANEL, out_features - panel * PANEL)
        for first in range(0, num_rows, 4):
            rows = x + first * x_bytes
            if first < fours:
                _four_rows(rows, x_bytes, dtype, columns, k, factor, sums)
            else:
                for i in range(num_rows - first):
                    _one_row(rows + i * x_bytes, dtype, columns, k, factor, sums + i * 64)
            for i in range(min(4, num_rows - first)):
                place = y + (first + i) * y_bytes + panel * PANEL * item
                store_row(sums + i * 64, width, place, dtype)
    keep(scratch)


@kernel(f"void({', '.join(['int64'] * 11)})")
def multiply_int8(dtype, x, x_bytes, num_rows, k, weight, scale, y, y_bytes, out_features, threads):
    panels = (out_features + PANEL - 1) // PANEL
    for thread in numba.prange(threads):
        begin, end = panels * thread // threads, panels * (thread + 1) // threads
        _panels(begin, end, dtype, x, x_bytes, num_rows, k, weight, scale, y, y_bytes, out_features)


def pack_int8(values: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out_features, in_features] to panels [panels, in_features, 16], zeros added."""
    missing = -values.shape[0] % PANEL
    panels = F.pad(values, (0, 0, 0, missing)).view(-1, PANEL, values.shape[1])
    return panels.transpose(1, 2).contiguous(), F.pad(scale, (0, missing))


def product_int8(
    x: torch.Tensor, panels: torch.Tensor, scale: torch.Tensor, out_features: int
) -> torch.Tensor:
    """x: [num_rows, in_features]; panels and scale: what `pack_int8` made."""
    assert x.stride(1) == 1
    y = torch.empty(x.shape[0], out_features, dtype=x.dtype)
    item = x.element_size()
    multiply_int8(
        dtype_code(x.dtype),
        x.data_ptr(),
        x.stride(0) * item,
        x.shape[0],
        x.shape[1],
        panels.data_ptr(),
        scale.data_ptr(),
        y.data_ptr(),
        y.stride(0) * item,
        out_features,
        numba.get_num_threads(),
    )
    return y
