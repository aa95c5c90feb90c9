"""Grouped LoRA on AMX tiles, bfloat16: one kernel for all slices and adapters of a fused projection.

For a chunk of up to 16 tokens of one adapter: t [ranks, 16 tokens] = A @ x^T in float32, rounded, then
y += t^T @ B, 32 ranks at a time. A token's sums do not see the others.
"""

import numba
import numpy as np
import torch

from loraplex_kernels._amx import (
    round_16,
    tile_dot,
    tile_load,
    tile_release,
    tile_shapes,
    tile_store,
    tile_zero,
)
from loraplex_kernels._numba import (
    address_of,
    kernel,
    piece,
    pointer_f32,
    pointer_i32,
    prefetch_rows,
)
from loraplex_kernels._vector import (
    as_bf16,
    load,
    load_bf16,
    splat,
    store,
    store_pairs,
    transpose_words,
    zip_bf16,
)
from loraplex_kernels.lora._numba import MAX_SLICES
from loraplex_kernels.lora.segments import LoraSegments
from loraplex_kernels.lora.slab import LoraSlab

TOKENS = 16  # of one chunk
RANKS = 32  # of one step of the second product
TILE_BYTES = 1024

# The first product is [ranks, tokens] with as many rows as there are ranks, the second [tokens, 16].
load_a, load_x, zero_t, dot_t, store_t = (
    tile_load(4),
    tile_load(6),
    tile_zero(0),
    tile_dot((0, 4, 6)),
    tile_store(0),
)
load_t, load_b, zero_y, dot_y, store_y = (
    tile_load(5),
    tile_load(7),
    tile_zero(2),
    tile_dot((2, 5, 7)),
    tile_store(2),
)


@piece
def _clear(address, num_bytes):
    for at in range(0, num_bytes, 64):
        store(address + at, splat(np.float32(0)))


@piece
def _gather(x, x_bytes, tokens, count, k, rows, out):
    """The chunk's tokens as right factors [k / 32, 16 pairs, 16 tokens, 2]; rows: scratch of 16 x k."""
    token = pointer_i32(tokens)
    if count < 4:
        _clear(out, k * 32)
        for i in range(count):
            source, target = pointer_i32(x + token[i] * x_bytes), pointer_i32(out)
            for pair in range(k // 2):
                target[pair * TOKENS + i] = source[pair]
        return
    for i in range(TOKENS):
        if i < count:
            for at in range(0, k * 2, 64):
                store(rows + i * k * 2 + at, load(x + token[i] * x_bytes + at))
        else:
            _clear(rows + i * k * 2, k * 2)
    for step in range(k // 32):
        transpose_words(rows + step * 64, k * 2, out + step * TILE_BYTES, 64)


@piece
def _shrink(x, count, k, a, rank, scale, sums, out):
    """scale * (A @ x^T) of up to 32 ranks, as a left factor [16 tokens, 32 ranks]."""
    _clear(sums, 2 * TILE_BYTES)
    for first in range(0, rank, 16):
        tile_shapes(min(16, rank - first), count)
        zero_t()
        for step in range(k // 32):
            load_a(a + first * k * 2 + step * 64, k * 2)
            load_x(x + step * TILE_BYTES, 64)
            dot_t()
        store_t(sums + first * 64, 64)
    turned = sums + 2 * TILE_BYTES  # [16 pairs of ranks, 16 tokens, 2]
    factor = splat(scale)
    for pair in range(RANKS // 2):
        one, two = load(sums + 2 * pair * 64), load(sums + (2 * pair + 1) * 64)
        store_pairs(turned + pair * 64, as_bf16(one * factor), as_bf16(two * factor))
    transpose_words(turned, 64, out, 64)


@piece
def _pair_rows(b, width, rank, nothing, out):
    """16 columns of up to 32 rows of B as a right factor; rows past the rank are zero."""
    for pair in range(RANKS // 2):
        row = b + 2 * pair * width * 2
        if 2 * pair + 1 < rank:
            zip_bf16(row, row + width * 2, out + pair * 64)
        elif 2 * pair < rank:
            zip_bf16(row, nothing, out + pair * 64)
        else:
            store(out + pair * 64, splat(np.float32(0)))


@piece
def _expand(y, y_bytes, tokens, count, b, width, rank, factors, scratch):
    """y += t^T @ B, 16 columns at a time; factors: a left factor for each 32 ranks."""
    token = pointer_i32(tokens)
    nothing, pairs, sums = scratch, scratch + 64, scratch + 64 + TILE_BYTES
    _clear(nothing, 64)
    for column in range(0, width, 16):
        zero_y()
        for first in range(0, rank, RANKS):
            _pair_rows(b + (first * width + column) * 2, width, rank - first, nothing, pairs)
            load_t(factors + first // RANKS * TILE_BYTES, 64)
            load_b(pairs, 64)
            dot_y()
        store_y(sums, 64)
        for i in range(count):
            place = y + token[i] * y_bytes + column * 2
            round_16(place, load_bf16(place) + load(sums + i * 64))


@piece
def _chunk(y, y_bytes, x, x_bytes, k, a, b, width, rank, scale, tokens, count):
    blocks = (rank + RANKS - 1) // RANKS
    scratch = np.empty(16 * k + 256 * (4 + blocks) + 16 * 50, np.float32)
    rows = address_of(scratch)
    gathered = rows + k * 32
    sums = gathered + k * 32
    factors = sums + 4 * TILE_BYTES
    prefetch_rows(b, rank * width * 2)
    _gather(x, x_bytes, tokens, count, k, rows, gathered)
    for block in range(blocks):
        _shrink(
            gathered,
            count,
            k,
            a + block * RANKS * k * 2,
            min(RANKS, rank - block * RANKS),
            scale,
            sums,
            factors + block * TILE_BYTES,
        )
    _expand(y, y_bytes, tokens, count, b, width, rank, factors, factors + blocks * TILE_BYTES)


@piece
def _item(index, y, y_bytes, x, x_bytes, k, a, rows, b, widths, slots, segments):
    """Work item `index`: one chunk of the table times one slice."""
    row_start, rank, scale, num_slices = slots
    permutation, chunk_slot, chunk_start, chunk_length = segments
    chunk, s = index // num_slices, index % num_slices
    slot = np.int64(pointer_i32(chunk_slot)[chunk])
    r = np.int64(pointer_i32(rank)[slot * num_slices + s])
    if r == 0:
        return
    row = np.int64(pointer_i32(row_start)[slot])
    column = 0
    for before in range(s):
        column += widths[before]
    start, length = pointer_i32(chunk_start)[chunk], pointer_i32(chunk_length)[chunk]
    for first in range(0, np.int64(length), TOKENS):
        _chunk(
            y + column * 2,
            y_bytes,
            x,
            x_bytes,
            k,
            a + (s * rows + row) * k * 2,
            b[s] + row * widths[s] * 2,
            widths[s],
            r,
            pointer_f32(scale)[slot * num_slices + s],
            permutation + (np.int64(start) + first) * 4,
            min(TOKENS, np.int64(length) - first),
        )


@piece
def _thread(begin, end, y, y_bytes, x, x_bytes, k, a, rows, b, widths, slots, segments):
    for index in range(begin, end):
        _item(index, y, y_bytes, x, x_bytes, k, a, rows, b, widths, slots, segments)
    tile_release()


@kernel(f"void({', '.join(['int64'] * 23)})")
def grouped_lora_tiles(
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
    threads,
):
    items = num_chunks * num_slices
    for thread in numba.prange(threads):
        _thread(
            items * thread // threads,
            items * (thread + 1) // threads,
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
    """As loraplex_kernels.lora.apply_lora; in_features in steps of 32, slices of 16 columns."""
    widths = slab.slice_widths
    padding = (0,) * (MAX_SLICES - len(widths))
    grouped_lora_tiles(
        y.data_ptr(),
        y.stride(0) * 2,
        x.data_ptr(),
        x.stride(0) * 2,
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
        numba.get_num_threads(),
    )
