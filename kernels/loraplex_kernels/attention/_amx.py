"""Paged attention on AMX tiles, bfloat16.

Work is a tile of query tokens times a kv head: its lanes, 16 side by side, walk the sequence's keys 32 at
a time, in order. What a lane adds up depends on its position and on nothing else.
"""

import numba
import numpy as np
import torch

from loraplex_kernels._amx import tile_release, tile_shapes
from loraplex_kernels._numba import address_of, kernel, piece, pointer_i32
from loraplex_kernels.attention._amx_lanes import (
    KEYS,
    LANE_BYTES,
    LANES,
    begin,
    finish,
    gather_queries,
    meet_keys,
)
from loraplex_kernels.attention._numba import QUERY_TILE, tile_of


@piece
def _run_of_keys(run, last_run, table, head, kv_heads, block_size, dim):
    """Offset into a cache of the 16 keys of a run; past the last one, the last one's."""
    token = min(run, last_run) * 16
    block = np.int64(pointer_i32(table)[token // block_size])
    return ((block * kv_heads + head) * block_size + token % block_size) * dim * 2


@piece
def _tile(q, q_bytes, out, caches, table, token, tokens, position, shape, scale, window, scratch):
    """Query tokens [token, token + tokens) of one sequence and one kv head over their keys."""
    head, heads, group, kv_heads, block_size, dim = shape
    k_cache, v_cache = caches
    lanes = tokens * group
    padded = -(-lanes // LANES) * LANES
    queries = address_of(scratch)
    scores = queries + padded * dim * 2
    state = scores + KEYS * LANE_BYTES
    lasts = state + 2 * padded * 4
    sums = lasts + padded * 4
    values = sums + padded * dim * 4
    weights = values + 16 * dim * 4
    places = (queries, scores, state, lasts, sums, values, weights)
    source = q + token * q_bytes + head * group * dim * 2
    gather_queries(source, q_bytes, tokens, group, dim, queries)
    begin(padded, tokens, group, position, dim, state, lasts, sums)
    tile_shapes(16, min(LANES, lanes))
    end = position + tokens
    last_run = (end - 1) // 16
    start = 0
    if window > 0:
        start = max(0, position - window + 1) // KEYS * KEYS
    runs = (
        _run_of_keys(start // 16, last_run, table, head, kv_heads, block_size, dim),
        _run_of_keys(start // 16 + 1, last_run, table, head, kv_heads, block_size, dim),
    )
    for key in range(start, end, KEYS):
        run = key // 16 + 2
        following = (
            _run_of_keys(run, last_run, table, head, kv_heads, block_size, dim),
            _run_of_keys(run + 1, last_run, table, head, kv_heads, block_size, dim),
        )
        ahead = (np.int64(0), np.int64(0), np.int64(0), np.int64(0))
        if run <= last_run:
            one, two = following
            ahead = (k_cache + one, k_cache + two, v_cache + one, v_cache + two)
        meet_keys(k_cache, v_cache, runs, ahead, end - key, lanes, key, scale, window, dim, places)
        runs = following
    target = out + (token * heads + head * group) * dim * 2
    finish(lanes, heads, group, state, sums, dim, weights, target)


@piece
def _work(index, q, q_bytes, out, caches, tables, starts, lengths, num_seqs, shape, params):
    """Work item `index`: one tile of query tokens times one kv head."""
    table_width, heads, kv_heads, block_size, dim = shape
    group = heads // kv_heads
    head = index % kv_heads
    seq, token, tokens, position = tile_of(index // kv_heads, starts, lengths, num_seqs)
    if tokens <= 0:
        return
    lanes = -(-tokens * group // LANES) * LANES
    floats = lanes * (dim // 2 + 3 + dim) + KEYS * LANES + 16 * dim + LANES * 16
    scratch = np.empty(floats, np.float32)
    _tile(
        q,
        q_bytes,
        out,
        caches,
        tables + seq * table_width * 4,
        token,
        tokens,
        position,
        (head, heads, group, kv_heads, block_size, dim),
        params[0],
        params[1],
        scratch,
    )


@piece
def _thread(
    first, step, items, q, q_bytes, out, caches, tables, starts, lengths, num_seqs, shape, params
):
    for index in range(first, items, step):
        _work(index, q, q_bytes, out, caches, tables, starts, lengths, num_seqs, shape, params)
    tile_release()


@kernel(f"void({', '.join(['int64'] * 16)}, float32, int64)")
def attend_tiles(
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
):
    for thread in numba.prange(threads):
        # strided: neighbours in the batch are alike, so threads get the same mix
        _thread(
            thread,
            threads,
            num_tiles * kv_heads,
            q,
            q_bytes,
            out,
            (k_cache, v_cache),
            tables,
            starts,
            lengths,
            num_seqs,
            (table_width, heads, kv_heads, block_size, dim),
            (scale, window),
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
) -> torch.Tensor:
    """As loraplex_kernels.attention.paged_attention, without soft-capping; head_dim in steps of 32."""
    out = torch.empty(q.shape, dtype=q.dtype)
    attend_tiles(
        q.data_ptr(),
        q.stride(0) * 2,
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
    )
    return out
