"""Grouped LoRA on the CPU: one kernel for all slices and adapters of a fused projection."""

import numba
import numpy as np
import torch

from loraplex_kernels._numba import (
    BF16,
    ITEM_BYTES,
    address_of,
    dtype_code,
    float_of_bf16,
    kernel,
    load_row,
    piece,
    pointer_f32,
    pointer_i32,
    pointer_u16,
    prefetch_rows,
    store_row,
)
from loraplex_kernels.lora.segments import LoraSegments
from loraplex_kernels.lora.slab import MAX_SLICES, LoraSlab


@piece
def _dot4(x, a, dtype, k):
    """Products of a float32 row with four consecutive rows of A."""
    v = pointer_f32(x)
    s0 = s1 = s2 = s3 = np.float32(0)
    if dtype == BF16:
        a0, a1, a2, a3 = (
            pointer_u16(a),
            pointer_u16(a + 2 * k),
            pointer_u16(a + 4 * k),
            pointer_u16(a + 6 * k),
        )
        for i in range(k):
            s0 += v[i] * float_of_bf16(a0[i])
            s1 += v[i] * float_of_bf16(a1[i])
            s2 += v[i] * float_of_bf16(a2[i])
            s3 += v[i] * float_of_bf16(a3[i])
    else:
        f0, f1, f2, f3 = (
            pointer_f32(a),
            pointer_f32(a + 4 * k),
            pointer_f32(a + 8 * k),
            pointer_f32(a + 12 * k),
        )
        for i in range(k):
            s0 += v[i] * f0[i]
            s1 += v[i] * f1[i]
            s2 += v[i] * f2[i]
            s3 += v[i] * f3[i]
    return s0, s1, s2, s3


@piece
def _dot1(x, a, dtype, k):
    v = pointer_f32(x)
    total = np.float32(0)
    if dtype == BF16:
        bits = pointer_u16(a)
        for i in range(k):
            total += v[i] * float_of_bf16(bits[i])
    else:
        values = pointer_f32(a)
        for i in range(k):
            total += v[i] * values[i]
    return total


@piece
def _add4(sums, factors, b, dtype, width):
    """sums += the four consecutive rows of B, each times its factor."""
    out = pointer_f32(sums)
    t0, t1, t2, t3 = factors
    if dtype == BF16:
        b0, b1, b2, b3 = (
            pointer_u16(b),
            pointer_u16(b + 2 * width),
            pointer_u16(b + 4 * width),
            pointer_u16(b + 6 * width),
        )
        for i in range(width):
            out[i] += (t0 * float_of_bf16(b0[i]) + t1 * float_of_bf16(b1[i])) + (
                t2 * float_of_bf16(b2[i]) + t3 * float_of_bf16(b3[i])
            )
    else:
        f0, f1, f2, f3 = (
            pointer_f32(b),
            pointer_f32(b + 4 * width),
            pointer_f32(b + 8 * width),
            pointer_f32(b + 12 * width),
        )
        for i in range(width):
            out[i] += (t0 * f0[i] + t1 * f1[i]) + (t2 * f2[i] + t3 * f3[i])


@piece
def _add1(sums, factor, b, dtype, width):
    out = pointer_f32(sums)
    if dtype == BF16:
        bits = pointer_u16(b)
        for i in range(width):
            out[i] += factor * float_of_bf16(bits[i])
    else:
        values = pointer_f32(b)
        for i in range(width):
            out[i] += factor * values[i]


@piece
def _products(dtype, y, y_bytes, x, x_bytes, k, a, b, width, rank, scale, tokens, count, scratch):
    token = pointer_i32(tokens)
    item = ITEM_BYTES[dtype]
    row = address_of(scratch)
    sums = row + k * 4
    for i in range(count):
        load_row(x + token[i] * x_bytes, dtype, row, k)
        load_row(y + token[i] * y_bytes, dtype, sums, width)
        fours = rank & ~3
        for r in range(0, fours, 4):
            if i == 0:  # cold weights: ask for the next rows while these are being used
                prefetch_rows(a + (r + 4) * k * item, 4 * k * item)
                prefetch_rows(b + (r + 4) * width * item, 4 * width * item)
            s0, s1, s2, s3 = _dot4(row, a + r * k * item, dtype, k)
            factors = (scale * s0, scale * s1, scale * s2, scale * s3)
            _add4(sums, factors, b + r * width * item, dtype, width)
        for r in range(fours, rank):
            factor = scale * _dot1(row, a + r * k * item, dtype, k)
            _add1(sums, factor, b + r * width * item, dtype, width)
        store_row(sums, width, y + token[i] * y_bytes, dtype)


@piece
def _chunk(dtype, y, y_bytes, x, x_bytes, k, a, b, width, rank, scale, tokens, count):
    """y += scale * (x A^T) B for one slice of one chunk; a token's sums do not see the others."""
    scratch = np.empty(k + width, np.float32)
    _products(dtype, y, y_bytes, x, x_bytes, k, a, b, width, rank, scale, tokens, count, scratch)


@piece
def _item(index, dtype, y, y_bytes, x, x_bytes, k, a, rows, b, widths, slots, segments):
    """Work item `index`: one chunk of the table times one slice."""
    row_start, rank, scale, num_slices = slots
    permutation, chunk_slot, chunk_start, chunk_length = segments
    item = ITEM_BYTES[dtype]
    chunk, s = index // num_slices, index % num_slices
    slot = np.int64(pointer_i32(chunk_slot)[chunk])
    r = np.int64(pointer_i32(rank)[slot * num_slices + s])
    if r == 0:
        return
    row = np.int64(pointer_i32(row_start)[slot])
    column = 0
    for before in range(s):
        column += widths[before]
    _chunk(
        dtype,
        y + column * item,
        y_bytes,
        x,
        x_bytes,
        k,
        a + (s * rows + row) * k * item,
        b[s] + row * widths[s] * item,
        widths[s],
        r,
        pointer_f32(scale)[slot * num_slices + s],
        permutation + np.int64(pointer_i32(chunk_start)[chunk]) * 4,
        np.int64(pointer_i32(chunk_length)[chunk]),
    )


@kernel(f"void({', '.join(['int64'] * 23)})")
def grouped_lora(
    dtype,
    y,
    y_bytes,
    x,
    x_bytes,
    k,
    a,
    rows,
    b0,
    b1,
    b2,
    w0,
    w1,
    w2,
    num_slices,
    row_start,
    rank,
    scale,
    permutation,
    chunk_slot,
    chunk_start,
    chunk_length,
    num_chunks,
):
    for index in numba.prange(num_chunks * num_slices):
        _item(
            index,
            dtype,
            y,
            y_bytes,
            x,
            x_bytes,
            k,
            a,
            rows,
            (b0, b1, b2),
            (w0, w1, w2),
            (row_start, rank, scale, num_slices),
            (permutation, chunk_slot, chunk_start, chunk_length),
        )


def apply_lora(y: torch.Tensor, x: torch.Tensor, slab: LoraSlab, segments: LoraSegments) -> None:
    """As loraplex_kernels.lora.apply_lora, on the CPU."""
    widths, item = slab.slice_widths, y.element_size()
    padding = (0,) * (MAX_SLICES - len(widths))
    grouped_lora(
        dtype_code(y.dtype),
        y.data_ptr(),
        y.stride(0) * item,
        x.data_ptr(),
        x.stride(0) * item,
        x.shape[1],
        slab.a.data_ptr(),
        slab.a.shape[1],
        *(b.data_ptr() for b in slab.b),
        *padding,
        *widths,
        *padding,
        len(widths),
        slab.row_start.data_ptr(),
        slab.rank.data_ptr(),
        slab.scale.data_ptr(),
        *segments.addresses,
        segments.num_chunks,
    )
