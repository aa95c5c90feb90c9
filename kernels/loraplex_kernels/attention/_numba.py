"""Paged attention and key/value writing on the CPU.

Each query row walks its own keys block by block, in order, with a running maximum. What a row adds
up depends on its position and on nothing else: not on the chunk it came in, not on the batch.
"""

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
    pointer_i32,
    prefetch_rows,
    store_row,
)
from loraplex_kernels.attention._numba_rows import begin, finish, meet_block, zero

QUERY_TILE = 16  # query tokens that share a block of keys converted to float32


@piece
def _tile(
    item,
    dtype,
    q,
    q_bytes,
    out,
    k_cache,
    v_cache,
    table,
    token,
    tokens,
    position,
    shape,
    params,
    scratch,
):
    """Query tokens [token, token + tokens) of one sequence and one kv head over their blocks."""
    head, heads, group, kv_heads, block_size, dim = shape
    scale, window, softcap = params
    width = dim * 4
    rows = tokens * group
    qs = address_of(scratch)
    sums = qs + rows * width
    state = sums + rows * width
    scores = state + rows * 8
    keys = scores + block_size * 4
    values = keys + block_size * width
    for i in range(tokens):
        for g in range(group):
            source = q + (token + i) * q_bytes + (head * group + g) * dim * item
            load_row(source, dtype, qs + (i * group + g) * width, dim)
    begin(rows, dim, sums, state)
    blocks = pointer_i32(table)
    first_block = 0
    if window > 0:
        first_block = max(0, position - window + 1) // block_size
    last_block = (position + tokens - 1) // block_size
    block_bytes = block_size * dim * item
    for b in range(first_block, last_block + 1):
        place = (np.int64(blocks[b]) * kv_heads + head) * block_bytes
        if b < last_block:  # cold pages: ask for the next block while this one is being used
            ahead = (np.int64(blocks[b + 1]) * kv_heads + head) * block_bytes
            prefetch_rows(k_cache + ahead, block_bytes)
            prefetch_rows(v_cache + ahead, block_bytes)
        known = min(block_size, position + tokens - b * block_size)
        load_row(k_cache + place, dtype, keys, known * dim)
        load_row(v_cache + place, dtype, values, known * dim)
        zero(values + known * width, (block_size - known) * dim)
        for i in range(tokens):
            first, last = 0, min(block_size, position + i + 1 - b * block_size)
            if window > 0:
                first = max(0, position + i + 1 - window - b * block_size)
            if first < last:
                for g in range(group):
                    r = i * group + g
                    meet_block(
                        qs + r * width,
                        sums + r * width,
                        state + r * 8,
                        keys,
                        values,
                        first,
                        last,
                        block_size,
                        dim,
                        scale,
                        softcap,
                        scores,
                    )
    finish(rows, dim, sums, state)
    for i in range(tokens):
        for g in range(group):
            target = out + ((token + i) * heads + head * group + g) * dim * item
            store_row(sums + (i * group + g) * width, dim, target, dtype)


@piece
def _sequence_of(tile, starts, num_seqs):
    """Sequence i owns the tiles from starts[i] // QUERY_TILE + i: at most one too many each."""
    low, high = 0, num_seqs
    start = pointer_i32(starts)
    while high - low > 1:
        middle = (low + high) // 2
        if np.int64(start[middle]) // QUERY_TILE + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@piece
def tile_of(tile, starts, lengths, num_seqs):
    """A tile's sequence, first query token, number of these and position of the first; none: past it."""
    seq = _sequence_of(tile, starts, num_seqs)
    begin = np.int64(pointer_i32(starts)[seq])
    end = np.int64(pointer_i32(starts)[seq + 1])
    token = begin + (tile - (begin // QUERY_TILE + seq)) * QUERY_TILE
    tokens = min(QUERY_TILE, end - token)
    return seq, token, tokens, np.int64(pointer_i32(lengths)[seq]) - (end - token)


@piece
def _work(
    index,
    dtype,
    q,
    q_bytes,
    out,
    caches,
    tables,
    table_width,
    starts,
    lengths,
    num_seqs,
    shape,
    params,
):
    """Work item `index`: one tile of query tokens times one kv head."""
    heads, kv_heads, block_size, dim = shape
    k_cache, v_cache = caches
    group = heads // kv_heads
    item = ITEM_BYTES[dtype]
    tile, head = index // kv_heads, index % kv_heads
    seq, token, tokens, position = tile_of(tile, starts, lengths, num_seqs)
    if tokens <= 0:
        return
    rows = tokens * group
    scratch = np.empty(rows * (2 * dim + 2) + block_size * (2 * dim + 1), np.float32)
    _tile(
        item,
        dtype,
        q,
        q_bytes,
        out,
        k_cache,
        v_cache,
        tables + seq * table_width * 4,
        token,
        tokens,
        position,
        (head, heads, group, kv_heads, block_size, dim),
        params,
        scratch,
    )


@kernel(f"void({', '.join(['int64'] * 17)}, float32, int64, float32)")
def attend(
    dtype,
    q,
    q_bytes,
    out,
    k_cache,
    v_cache,
    tables,
    table_width,
    starts,
    lengths,
    num_seqs,
    num_tiles,
    heads,
    kv_heads,
    block_size,
    dim,
    threads,
    scale,
    window,
    softcap,
):
    items = num_tiles * kv_heads
    for thread in numba.prange(threads):
        # strided: neighbours in the batch are alike, so threads get the same mix
        for index in range(thread, items, threads):
            _work(
                index,
                dtype,
                q,
                q_bytes,
                out,
                (k_cache, v_cache),
                tables,
                table_width,
                starts,
                lengths,
                num_seqs,
                (heads, kv_heads, block_size, dim),
                (scale, window, softcap),
            )


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lengths: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """As loraplex_kernels.attention.paged_attention, on the CPU."""
    out = torch.empty(q.shape, dtype=q.dtype)
    attend(
        dtype_code(q.dtype),
        q.data_ptr(),
        q.stride(0) * q.element_size(),
        out.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        block_tables.data_ptr(),
        block_tables.stride(0),
        query_start.data_ptr(),
        context_lengths.data_ptr(),
        len(context_lengths),
        q.shape[0] // QUERY_TILE + len(context_lengths),
        q.shape[1],
        *k_cache.shape[1:],
        numba.get_num_threads(),
        scale,
        window or 0,
        softcap or 0.0,
    )
    return out
