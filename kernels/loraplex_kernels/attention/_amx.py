"""Paged attention on AMX tiles, bfloat16.

A lane is one query head of one token, 16 of them stand side by side. Keys are met 32 at a time, in
order: scores [32 keys, 16 lanes] = keys @ queries^T, then sums [16 lanes, dim] += weights @ values.
Lanes never mix, so what one adds up depends on its position and on nothing else.
"""

import numba
import numpy as np
import torch

from loraplex_kernels._amx import (
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
    pointer_u16,
    prefetch_rows,
)
from loraplex_kernels._vector import (
    any_greater,
    as_bf16,
    exp_vector,
    if_at_most,
    largest,
    load,
    splat,
    store,
    store_bf16,
    store_pairs,
    transpose_words,
    zip_bf16,
)
from loraplex_kernels.attention._numba import QUERY_TILE, tile_of, zero

LANES = 16
KEYS = 32  # of one step: the inner dimension of a tile product
LANE_BYTES = LANES * 4  # one float32 of each lane
HIDDEN = np.float32(-1e30)

# Tiles 2 and 3 have as many rows as there are lanes, all others 16.
load_first, load_second, load_queries = tile_load(4), tile_load(7), tile_load(6)
zero_scores, dot_scores = tile_zero(0, 1), tile_dot((0, 4, 6), (1, 7, 6))
store_first, store_second = tile_store(0), tile_store(1)
load_weights, load_values, load_sums = tile_load(3), tile_load(6), tile_load(2)
dot_sums, store_sums = tile_dot((2, 3, 6)), tile_store(2)


@piece
def _gather_queries(q, q_bytes, tokens, group, dim, out):
    """Queries as right factors: for each 16 lanes and 32 dimensions [16 pairs, 16 lanes, 2]."""
    zero(out, -(-tokens * group // LANES) * LANES * dim // 2)
    for lane in range(tokens * group):
        source = pointer_i32(q + (lane // group) * q_bytes + (lane % group) * dim * 2)
        target = pointer_i32(out + (lane // LANES) * LANES * dim * 2)
        for pair in range(dim // 2):
            target[pair * LANES + lane % LANES] = source[pair]


@piece
def _score(first, second, queries, dim, out):
    """float32 [32 keys, 16 lanes] of two runs of 16 keys."""
    zero_scores()
    for step in range(dim // 32):
        load_first(first + step * 64, dim * 2)
        load_second(second + step * 64, dim * 2)
        load_queries(queries + step * 1024, 64)
        dot_scores()
    store_first(out, LANE_BYTES)
    store_second(out + 16 * LANE_BYTES, LANE_BYTES)


@piece
def _pair_values(first, second, known, dim, ahead, out):
    """Values of two runs of 16 keys as right factors: for each 16 dimensions [16 pairs of keys, 16, 2].

    Unknown keys' values are zero. The runs ahead are asked for meanwhile.
    """
    for pair in range(KEYS // 2):
        run, row = pair // 8, 2 * (pair % 8) * dim * 2
        if ahead[run]:  # cold pages: a few lines at a time, for so many can be under way
            prefetch_rows(ahead[run] + row, 4 * dim)
            prefetch_rows(ahead[run + 2] + row, 4 * dim)
        source = (first if run == 0 else second) + row
        for d in range(0, dim, 16):
            target = out + d * 64 + pair * 64
            if 2 * pair + 1 < known:
                zip_bf16(source + d * 2, source + (dim + d) * 2, target)
            else:
                zero(target, 16)
                if 2 * pair < known:
                    bits, words = pointer_u16(source + d * 2), pointer_i32(target)
                    for i in range(16):
                        words[i] = np.int32(bits[i])


@piece
def _times(row, dim, factor):
    for d in range(0, dim * 4, 64):
        store(row + d, load(row + d) * splat(factor))


@piece
def _weigh(scores, key, lasts, scale, window, state, sums, lanes, dim, weights):
    """Turn scores into weights, a left factor [16 lanes, 32 keys]; state: maxima and totals."""
    last, before = load(lasts), load(state)
    first = last - splat(np.float32(window - 1))
    hidden, factor, most = splat(HIDDEN), splat(scale), before
    for t in range(KEYS):
        at = splat(np.float32(key + t))
        value = if_at_most(at, last, load(scores + t * LANE_BYTES) * factor, hidden)
        if window > 0:
            value = if_at_most(first, at, value, hidden)
        store(scores + t * LANE_BYTES, value)
        most = largest(most, value)
    total = load(state + LANE_BYTES)
    if any_greater(most, before):
        shrink = exp_vector(before - most)
        total = total * shrink
        store(weights, shrink)  # its place is free as yet
        for lane in range(lanes):
            _times(sums + lane * dim * 4, dim, pointer_f32(weights)[lane])
    nothing, floor = splat(np.float32(0)), splat(HIDDEN)
    for pair in range(KEYS // 2):
        one, two = load(scores + 2 * pair * LANE_BYTES), load(scores + (2 * pair + 1) * LANE_BYTES)
        one = as_bf16(if_at_most(one, floor, nothing, exp_vector(one - most)))
        two = as_bf16(if_at_most(two, floor, nothing, exp_vector(two - most)))
        total = (total + one) + two
        store_pairs(scores + pair * LANE_BYTES, one, two)
    transpose_words(scores, LANE_BYTES, weights, 64)
    store(state, most)
    store(state + LANE_BYTES, total)


@piece
def _add_values(values, weights, dim, sums):
    load_weights(weights, 64)
    for d in range(0, dim, 16):
        load_sums(sums + d * 4, dim * 4)
        load_values(values + d * 64, 64)
        dot_sums()
        store_sums(sums + d * 4, dim * 4)


@piece
def _run_of_keys(run, last_run, table, head, kv_heads, block_size, dim):
    """Offset into a cache of the 16 keys of a run; past the last one, the last one's."""
    token = min(run, last_run) * 16
    block = np.int64(pointer_i32(table)[token // block_size])
    return ((block * kv_heads + head) * block_size + token % block_size) * dim * 2


@piece
def _start(lanes, tokens, group, position, dim, state, lasts, sums):
    """State of each 16 lanes: maxima, totals; and the last key each lane sees (-1: not a lane)."""
    zero(sums, lanes * dim)
    zero(state, 2 * lanes)
    last = pointer_f32(lasts)
    for lane in range(lanes):
        last[lane] = position + lane // group if lane < tokens * group else -1
    for lane in range(0, lanes, LANES):
        store(state + 2 * lane * 4, splat(HIDDEN))


@piece
def _finish(lanes, heads, group, state, sums, dim, shares, out):
    """Sums over totals, a row of dim for each lane; out: the first token's first head of the group."""
    for lane in range(lanes):
        if lane % LANES == 0:
            total = load(state + (2 * lane + LANES) * 4)
            store(shares, splat(np.float32(1)) / largest(total, splat(np.float32(1e-30))))
        share = splat(pointer_f32(shares)[lane % LANES])
        target = out + (lane // group * heads + lane % group) * dim * 2
        for d in range(0, dim, 16):
            store_bf16(target + d * 2, load(sums + (lane * dim + d) * 4) * share)


@piece
def _keys(k_cache, v_cache, runs, ahead, known, lanes, key, scale, window, dim, places):
    """Meet the 32 keys of two runs with all lanes."""
    queries, scores, state, lasts, sums, values, weights = places
    _pair_values(v_cache + runs[0], v_cache + runs[1], known, dim, ahead, values)
    for lane in range(0, lanes, LANES):
        _score(k_cache + runs[0], k_cache + runs[1], queries + lane * dim * 2, dim, scores)
        mine, count = sums + lane * dim * 4, min(LANES, lanes - lane)
        at = state + 2 * lane * 4
        _weigh(scores, key, lasts + lane * 4, scale, window, at, mine, count, dim, weights)
        _add_values(values, weights, dim, mine)


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
    _gather_queries(source, q_bytes, tokens, group, dim, queries)
    _start(padded, tokens, group, position, dim, state, lasts, sums)
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
        _keys(k_cache, v_cache, runs, ahead, end - key, lanes, key, scale, window, dim, places)
        runs = following
    target = out + (token * heads + head * group) * dim * 2
    _finish(lanes, heads, group, state, sums, dim, weights, target)


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
