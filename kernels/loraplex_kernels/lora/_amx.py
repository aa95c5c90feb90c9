"""Grouped LoRA on AMX tiles, bfloat16: one kernel for all slices and adapters of a fused projection.

For a chunk of up to 16 tokens of one adapter: t [tokens, ranks] = x @ A^T in float32, scaled and rounded,
then y += t @ B, 64 columns at a time. Both factors lie in memory as the tiles read them (`PackedSlab`), in
one stream. A token's sums do not see the others.
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
    keep,
    kernel,
    piece,
    pointer_f32,
    pointer_i32,
    pointer_i64,
    pointer_u16,
    prefetch_rows,
)
from loraplex_kernels._vector import fma, load, load_bf16, splat, store
from loraplex_kernels.lora._packing import pack_into
from loraplex_kernels.lora.packed import COLUMNS, INNER, PackedSlab
from loraplex_kernels.lora.segments import LoraSegments

__all__ = ["apply_lora", "pack_into"]

TOKENS = 16  # of one chunk
TILE_BYTES = 1024
AHEAD_BYTES = 4096  # of the stream of factors: asked for before its time comes

load_4, load_5, load_6, load_7 = map(tile_load, range(4, 8))
zero_all = tile_zero(0, 1, 2, 3)
dot_046, dot_157, dot_246, dot_357, dot_147, dot_347 = (
    tile_dot(tiles) for tiles in ((0, 4, 6), (1, 5, 7), (2, 4, 6), (3, 5, 7), (1, 4, 7), (3, 4, 7))
)


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


def _each_of(first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """A piece (sums): the four sums moved, which lie side by side, [tokens, 64] float32."""

    @piece
    def move(sums):
        first(sums, 256)
        second(sums + 64, 256)
        third(sums + 128, 256)
        fourth(sums + 192, 256)

    return move


_store_all = _each_of(*map(tile_store, range(4)))
_load_all = _each_of(*map(tile_load, range(4)))


@piece
def _shrink(x, x_bytes, count, k, a, rank, scale, sums, out):
    """scale * (x @ A^T), rounded: a left factor [16 tokens, 32] for each 32 ranks.

    Every fourth product has the same sum, so that none waits for the one before.
    """
    steps, factor, ranks = k // INNER, splat(scale), 0
    for first in range(0, rank, COLUMNS):
        if min(COLUMNS, rank - first) != ranks:
            ranks = min(COLUMNS, rank - first)
            tile_layout(count, INNER // 2, ranks)
        zero_all()
        at = a + first * k * 2
        for step in range(0, steps, 2):
            prefetch_rows(at + AHEAD_BYTES, ranks * 128)
            load_4(x + step * 64, x_bytes)
            load_6(at, ranks * 4)
            if step % 4:
                dot_246()
            else:
                dot_046()
            if step + 1 < steps:
                load_5(x + step * 64 + 64, x_bytes)
                load_7(at + ranks * 64, ranks * 4)
                if step % 4:
                    dot_357()
                else:
                    dot_157()
            at += ranks * 128
        _store_all(sums)
        target = out + first // INNER * TILE_BYTES + first % INNER * 2
        for i in range(count):
            row = sums + i * 256
            total = (load(row) + load(row + 64)) + (load(row + 128) + load(row + 192))
            round_16(target + i * 64, total * factor)


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
def _expand_blocks(b, b_bytes, num_bytes, blocks, parts, factors):
    """sums += t @ B, of up to four tiles of B, num_bytes apart, in each of some blocks of ranks."""
    for block in range(blocks):
        at = b + block * b_bytes
        prefetch_rows(at + AHEAD_BYTES, parts * num_bytes)
        load_4(factors + block * TILE_BYTES, 64)
        load_6(at, 64)
        dot_046()
        if parts > 1:
            load_7(at + num_bytes, 64)
            dot_147()
        if parts > 2:
            load_6(at + 2 * num_bytes, 64)
            dot_246()
        if parts > 3:
            load_7(at + 3 * num_bytes, 64)
            dot_347()


@piece
def _expand_pass(
    y, y_bytes, tokens, count, b, width, pairs, blocks, factors, sums, held, before, after, odd
):
    """y += t @ B for blocks of so many pairs of ranks; `held`: sums from `before`, or for `after`."""
    tile_layout(count, max(pairs, 1), COLUMNS)
    for column in range(0, width, 4 * COLUMNS):
        parts, here = min(4, (width - column) // COLUMNS), held + column * count * 4
        if before:
            _load_all(here)
        else:
            zero_all()
        at = b + column * pairs * 4
        _expand_blocks(at, width * INNER * 2, pairs * 64, blocks, parts, factors)
        if after:
            _store_all(here)
        else:
            _store_all(sums)
            row = odd + column * 2 if odd else 0
            _add(y + column * 2, y_bytes, tokens, count, parts, sums, row, factors + pairs * 4)


@piece
def _expand(y, y_bytes, tokens, count, b, width, rank, factors, sums, held):
    """y += t @ B; factors: what `_shrink` made. The blocks of 32 ranks, then the last few."""
    whole, pairs, odd = rank // INNER, rank % INNER // 2, 0
    if rank % 2:
        odd = b + (rank - 1) * width * 2
    if whole:
        after = rank % INNER > 0
        _expand_pass(
            y, y_bytes, tokens, count, b, width, INNER // 2, whole, factors, sums, held, 0, after, 0
        )
        b += whole * INNER * width * 2
        factors += whole * TILE_BYTES
    if rank % INNER:
        blocks = min(pairs, 1)
        _expand_pass(
            y, y_bytes, tokens, count, b, width, pairs, blocks, factors, sums, held, whole, 0, odd
        )


@piece
def _chunk(y, y_bytes, x, x_bytes, k, a, width, rank, scale, tokens, count):
    """One slice of up to 16 tokens of an adapter; B lies behind A."""
    blocks = (rank + INNER - 1) // INNER
    held_floats = TOKENS * (width + 4 * COLUMNS) if rank > INNER and rank % INNER else 0
    scratch = np.empty(8 * k + 1024 + 256 * blocks + held_floats, np.float32)
    copied = address_of(scratch)
    sums = copied + TOKENS * k * 2
    factors = sums + 4 * TILE_BYTES
    held = factors + blocks * TILE_BYTES
    rows, row_bytes = _rows_of(x, x_bytes, tokens, count, k, copied)
    _shrink(rows, row_bytes, count, k, a, rank, scale, sums, factors)
    b = a + rank * k * 2
    _expand(y, y_bytes, tokens, count, b, width, rank, factors, sums, held)
    keep(scratch)


@piece
def _item(index, y, y_bytes, x, x_bytes, k, memory, widths, slots, segments):
    """Work item `index`: one chunk of the table times one slice."""
    starts, ranks, scales, num_slices = slots
    permutation, chunk_slot, chunk_start, chunk_length = segments
    chunk, s = index // num_slices, index % num_slices
    at = np.int64(pointer_i32(chunk_slot)[chunk]) * num_slices + s
    rank = np.int64(pointer_i32(ranks)[at])
    if rank == 0:
        return
    column = 0
    for before in range(s):
        column += widths[before]
    start, length = pointer_i32(chunk_start)[chunk], np.int64(pointer_i32(chunk_length)[chunk])
    for first in range(0, length, TOKENS):
        _chunk(
            y + column * 2,
            y_bytes,
            x,
            x_bytes,
            k,
            memory + pointer_i64(starts)[at] * 2,
            widths[s],
            rank,
            pointer_f32(scales)[at],
            permutation + (np.int64(start) + first) * 4,
            min(TOKENS, length - first),
        )


@piece
def _thread(begin, end, y, y_bytes, x, x_bytes, k, memory, widths, slots, segments):
    for index in range(begin, end):
        _item(index, y, y_bytes, x, x_bytes, k, memory, widths, slots, segments)
    tile_release()


@kernel(f"void({', '.join(['int64'] * 19)})")
def grouped_lora_tiles(
    y,
    y_bytes,
    x,
    x_bytes,
    k,
    memory,
    w0,
    w1,
    w2,
    num_slices,
    starts,
    ranks,
    scales,
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
            memory,
            (w0, w1, w2),
            (starts, ranks, scales, num_slices),
            (permutation, chunk_slot, chunk_start, chunk_length),
        )


def apply_lora(y: torch.Tensor, x: torch.Tensor, slab: PackedSlab, segments: LoraSegments) -> None:
    """As loraplex_kernels.lora.apply_lora; in_features in steps of 32, slices of 16 columns."""
    grouped_lora_tiles(
        y.data_ptr(),
        y.stride(0) * 2,
        x.data_ptr(),
        x.stride(0) * 2,
        *slab.arguments,
        *segments.addresses,
        segments.num_chunks,
        numba.get_num_threads(),
    )
