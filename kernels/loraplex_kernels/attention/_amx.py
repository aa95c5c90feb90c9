"""Paged attention on AMX tiles, bfloat16.

Work is a tile of query tokens times a kv head: its lanes, 16 side by side, walk the sequence's keys 32 at
a time, in order. Of a company of decodes the lanes of all members walk the keys they share, then each
member's go on alone. What a lane adds up depends on its position and on nothing else.
"""

import numba
import numpy as np
import torch

from loraplex_kernels._amx import tile_release, tile_shapes
from loraplex_kernels._numba import address_of, keep, kernel, piece, pointer_i32
from loraplex_kernels.attention._amx_lanes import (
    KEYS,
    LANE_BYTES,
    LANES,
    begin,
    copy_lane,
    finish,
    gather_queries,
    meet_keys,
)
from loraplex_kernels.attention._numba import QUERY_TILE, tile_of
from loraplex_kernels.attention.companies import STEP, Companies

assert STEP % KEYS == 0, "members part between two steps"


@piece
def _run_of_keys(run, last_run, table, head, kv_heads, block_size, dim):
    """Offset into a cache of the 16 keys of a run; past the last one, the last one's."""
    token = min(run, last_run) * 16
    block = np.int64(pointer_i32(table)[token // block_size])
    return ((block * kv_heads + head) * block_size + token % block_size) * dim * 2


@piece
def _walk(caches, table, start, end, lanes, shape, params, places):
    """All lanes meet the keys [start, end); start is a whole number of steps."""
    head, _, kv_heads, block_size, dim = shape
    k_cache, v_cache = caches
    scale, window = params
    last_run = (end - 1) // 16
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


@piece
def _padded(lanes):
    return -(-lanes // LANES) * LANES


@piece
def _num_floats(lanes, dim):
    """Of the scratch of so many lanes."""
    return _padded(lanes) * (dim // 2 + 2 + dim + 16) + KEYS * LANES + 16 * (dim + 16) + LANES * 16


@piece
def _places(scratch, lanes, dim):
    padded = _padded(lanes)
    queries = scratch
    scores = queries + padded * dim * 2
    state = scores + KEYS * LANE_BYTES
    lasts = state + padded * 4
    sums = lasts + padded * 4
    values = sums + padded * (dim + 16) * 4
    weights = values + (dim + 16) * 64
    return queries, scores, state, lasts, sums, values, weights


@piece
def _tile(q, out, caches, table, token, tokens, position, shape, params):
    """Query tokens [token, token + tokens) of one sequence and one kv head over their keys."""
    head, heads, kv_heads, _, dim = shape
    window = params[1]
    group = heads // kv_heads
    lanes = tokens * group
    scratch = np.empty(_num_floats(lanes, dim), np.float32)
    places = _places(address_of(scratch), lanes, dim)
    begin(_padded(lanes), tokens, group, position, dim, places)
    for i in range(tokens):
        gather_queries(q, token + i, head * group, group, dim, i * group, places[0])
    tile_shapes(16, min(LANES, lanes))
    start = 0
    if window > 0:
        start = max(0, position - window + 1) // KEYS * KEYS
    _walk(caches, table, start, position + tokens, lanes, shape, params, places)
    target = out + (token * heads + head * group) * dim * 2
    finish(lanes, heads, group, places[4], dim, target)
    keep(scratch)


@piece
def _company(q, out, caches, tables, table_bytes, batch, members, count, shared, shape, params):
    """Decodes that have their first `shared` keys in common, and one kv head."""
    head, heads, kv_heads, _, dim = shape
    starts, lengths = pointer_i32(batch[0]), pointer_i32(batch[1])
    seqs = pointer_i32(members)
    group = heads // kv_heads
    lanes = count * group
    scratch = np.empty(_num_floats(lanes, dim) + _num_floats(group, dim), np.float32)
    together = _places(address_of(scratch), lanes, dim)
    if shared > 0:
        begin(_padded(lanes), count, group, shared, dim, together)
        for i in range(count):
            token = np.int64(starts[seqs[i]])
            gather_queries(q, token, head * group, group, dim, i * group, together[0])
        tile_shapes(16, min(LANES, lanes))
        table = tables + seqs[0] * table_bytes
        _walk(caches, table, np.int64(0), shared, lanes, shape, params, together)
    alone = _places(address_of(scratch) + _num_floats(lanes, dim) * 4, group, dim)
    tile_shapes(16, min(LANES, group))
    for i in range(count):
        token, length = np.int64(starts[seqs[i]]), np.int64(lengths[seqs[i]])
        begin(_padded(group), 1, group, length - 1, dim, alone)
        gather_queries(q, token, head * group, group, dim, 0, alone[0])
        if shared > 0:
            for lane in range(group):
                copy_lane(together, i * group + lane, alone, lane, dim)
        table = tables + seqs[i] * table_bytes
        _walk(caches, table, shared, length, group, shape, params, alone)
        target = out + (token * heads + head * group) * dim * 2
        finish(group, heads, group, alone[4], dim, target)
    keep(scratch)


@piece
def _work(index, q, out, caches, tables, table_bytes, batch, companies, shape, params):
    """Work item `index`: a company, or else a tile of query tokens, times one kv head."""
    starts, lengths, num_seqs = batch
    members, borders, shared, num_companies = companies
    heads, kv_heads, block_size, dim = shape
    item, head = index // kv_heads, index % kv_heads
    shape = (head, heads, kv_heads, block_size, dim)
    if item < num_companies:
        first = np.int64(pointer_i32(borders)[item])
        count = np.int64(pointer_i32(borders)[item + 1]) - first
        walk = np.int64(pointer_i32(shared)[item])
        mine = members + first * 4
        _company(q, out, caches, tables, table_bytes, batch, mine, count, walk, shape, params)
        return
    seq, token, tokens, position = tile_of(item - num_companies, starts, lengths, num_seqs)
    is_decode = pointer_i32(starts)[seq + 1] - pointer_i32(starts)[seq] == 1
    if tokens <= 0 or (num_companies > 0 and is_decode):
        return
    _tile(q, out, caches, tables + seq * table_bytes, token, tokens, position, shape, params)


@piece
def _thread(
    first, step, items, q, out, caches, tables, table_bytes, batch, companies, shape, params
):
    for index in range(first, items, step):
        _work(index, q, out, caches, tables, table_bytes, batch, companies, shape, params)
    tile_release()


@kernel(f"void({', '.join(['int64'] * 20)}, float32, int64)")
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
    members,
    borders,
    shared,
    num_companies,
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
            (num_companies + num_tiles) * kv_heads,
            (q, q_bytes),
            out,
            (k_cache, v_cache),
            tables,
            table_width * 4,
            (starts, lengths, num_seqs),
            (members, borders, shared, num_companies),
            (heads, kv_heads, block_size, dim),
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
    companies: Companies | None,
) -> torch.Tensor:
    """As loraplex_kernels.attention.paged_attention, without soft-capping; head_dim in steps of 32."""
    out = torch.empty(q.shape, dtype=q.dtype)
    # A window may have passed what they share
    together = (0, 0, 0, 0) if companies is None or window else companies.addresses
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
        *together,
        q.shape[1],
        *k_cache.shape[1:],
        numba.get_num_threads(),
        scale,
        window or 0,
    )
    return out
