"""Grouped LoRA on AMX tiles, bfloat16: one kernel for all slices and adapters of a fused projection.

For a chunk of up to 16 tokens of one adapter: t [tokens, ranks] = x @ A^T in float32, scaled and rounded,
then y += t @ B, 64 columns at a time. Both factors lie in the slab as the tiles read them (`_packing`),
so that they come from memory in one stream. A token's sums do not see the others.
"""

from typing import Any

import numba
import numpy as np
import torch

from loraplex_kernels._amx import (
    round_16,
    tile_dot,
    tile_layout,
    tile_load,
    tile_release,
    tile_store,
    tile_zero,
)
from loraplex_kernels._numba import (
    address_of,
    float_of_bf16,
    kernel,
    piece,
    pointer_f32,
    pointer_i32,
    pointer_u16,
    prefetch_rows,
)
from loraplex_kernels._vector import fma, load, load_bf16, splat, store
from loraplex_kernels.lora._numba import MAX_SLICES
from loraplex_kernels.lora._packing import COLUMNS, INNER
from loraplex_kernels.lora.segments import LoraSegments
from loraplex_kernels.lora.slab import LoraSlab

TOKENS = 16  # of one chunk
TILE_BYTES = 1024

# x @ A^T: 16 ranks into 0 or 2 each, the last few into 1.
load_x, load_x_rest, load_a, load_a_rest = tile_load(4), tile_load(5), tile_load(6), tile_load(7)
zero_0, zero_1, zero_02 = tile_zero(0), tile_zero(1), tile_zero(0, 2)
dot_0, dot_2, dot_rest_1 = tile_dot((0, 4, 6)), tile_dot((2, 4, 6)), tile_dot((1, 5, 7))
store_0, store_1, store_2, store_3 = (tile_store(tile) for tile in range(4))
# t @ B: 64 columns, 32 ranks at a time, then the last few.
load_t, load_t_rest, load_b, load_b_rest = load_x, load_x_rest, load_a, load_a_rest
zero_all = tile_zero(0, 1, 2, 3)
dot_1, dot_3 = tile_dot((1, 4, 6)), tile_dot((3, 4, 6))
dot_rest_0, dot_rest_2, dot_rest_3 = (tile_dot((tile, 5, 7)) for tile in (0, 2, 3))


@piece
def _rows_of(x, x_bytes, tokens, count, k, out):
    """Address and distance of the chunk's rows of x: as they lie, or copied side by side."""
    token = pointer_i32(tokens)
    if token[count - 1] - token[0] == count - 1:
        return x + token[0] * x_bytes, x_bytes
    for i in range(count):
        for at in range(0, k * 2, 64):
            store(out + i * k * 2 + at, load(x + token[i] * x_bytes + at))
    return out, k * 2


@piece
def _round(sums, count, factor, out):
    for i in range(count):
        round_16(out + i * 64, load(sums + i * 64) * factor)


@piece
def _shrink(x, x_bytes, count, k, a, rank, scale, sums, out):
    """scale * (x @ A^T), rounded: a left factor [16 tokens, 32] for each 32 ranks."""
    steps, rest, factor = k // INNER, rank % COLUMNS, splat(scale)
    tile_layout(count, 16, max(rest, 1))
    first = 0
    while rank - first >= 2 * COLUMNS:
        zero_02()
        block = a + first * k * 2
        for step in range(steps):
            load_x(x + step * 64, x_bytes)
            load_a(block + step * TILE_BYTES, 64)
            dot_0()
            load_a(block + (steps + step) * TILE_BYTES, 64)
            dot_2()
        store_0(sums, 64)
        store_2(sums + TILE_BYTES, 64)
        target = out + first // INNER * TILE_BYTES
        _round(sums, count, factor, target)
        _round(sums + TILE_BYTES, count, factor, target + 32)
        first += 2 * COLUMNS
    target = out + first // INNER * TILE_BYTES
    if rank - first >= COLUMNS:
        zero_0()
        for step in range(steps):
            load_x(x + step * 64, x_bytes)
            load_a(a + first * k * 2 + step * TILE_BYTES, 64)
            dot_0()
        store_0(sums, 64)
        _round(sums, count, factor, target)
        first += COLUMNS
        target += 32
    if rest:
        zero_1()
        for step in range(steps):
            load_x_rest(x + step * 64, x_bytes)
            load_a_rest(a + first * k * 2 + step * rest * 64, rest * 4)
            dot_rest_1()
        for i in range(count):
            store(sums + i * 64, splat(np.float32(0)))
        store_1(sums, 64)
        _round(sums, count, factor, target)


def _dots_of(load_right: Any, *products: Any) -> Any:
    """A piece (b, num_bytes, parts): up to four tiles of B, num_bytes apart, each into its sum."""
    first, second, third, fourth = products

    @piece
    def dots(b, num_bytes, parts):
        load_right(b, 64)
        first()
        if parts > 1:
            load_right(b + num_bytes, 64)
            second()
        if parts > 2:
            load_right(b + 2 * num_bytes, 64)
            third()
        if parts > 3:
            load_right(b + 3 * num_bytes, 64)
            fourth()

    return dots


_dots = _dots_of(load_b, dot_0, dot_1, dot_2, dot_3)
_dots_rest = _dots_of(load_b_rest, dot_rest_0, dot_rest_1, dot_rest_2, dot_rest_3)


@piece
def _add(y, y_bytes, tokens, count, parts, sums, odd, factors):
    """Rows of sums [tokens, 64] to y, and with them what an odd rank (its row of B, or 0) adds."""
    token = pointer_i32(tokens)
    for i in range(count):
        row = y + token[i] * y_bytes
        for part in range(parts):
            total = load(sums + i * 256 + part * 64)
            if odd:
                factor = float_of_bf16(pointer_u16(factors + i * 64)[0])
                total = fma(splat(factor), load_bf16(odd + part * 32), total)
            round_16(row + part * 32, load_bf16(row + part * 32) + total)


@piece
def _expand(y, y_bytes, tokens, count, b, width, rank, factors, sums):
    """y += t @ B; factors: what `_shrink` made."""
    whole, pairs = rank // INNER, rank % INNER // 2
    tile_layout(count, max(pairs, 1), 16)
    rest_b, last = b + whole * INNER * width * 2, factors + whole * TILE_BYTES
    for column in range(0, width, 4 * COLUMNS):
        parts = min(4, (width - column) // COLUMNS)
        zero_all()
        for block in range(whole):
            load_t(factors + block * TILE_BYTES, 64)
            _dots(b + (block * width + column) * INNER * 2, TILE_BYTES, parts)
        if pairs:
            load_t_rest(last, 64)
            _dots_rest(rest_b + column * pairs * 4, pairs * 64, parts)
        store_0(sums, 256)
        store_1(sums + 64, 256)
        store_2(sums + 128, 256)
        store_3(sums + 192, 256)
        odd = b + ((rank - 1) * width + column) * 2 if rank % 2 else 0
        factor = last + (rank % INNER - 1) * 2
        _add(y + column * 2, y_bytes, tokens, count, parts, sums, odd, factor)


@piece
def _chunk(y, y_bytes, x, x_bytes, k, a, b, width, rank, scale, tokens, count):
    blocks = (rank + INNER - 1) // INNER
    scratch = np.empty(8 * k + 256 * (4 + blocks), np.float32)
    copied = address_of(scratch)
    sums = copied + TOKENS * k * 2
    factors = sums + 4 * TILE_BYTES
    prefetch_rows(b, rank * width * 2)
    rows, row_bytes = _rows_of(x, x_bytes, tokens, count, k, copied)
    _shrink(rows, row_bytes, count, k, a, rank, scale, sums, factors)
    _expand(y, y_bytes, tokens, count, b, width, rank, factors, sums)


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
