"""What 16 lanes do with 32 keys, on AMX tiles: scores, weights and sums of paged attention.

A lane is one query head of one token. scores [32 keys, 16 lanes] = keys @ queries^T, then
sums [16 lanes, dim] += weights @ values. Lanes never mix.
"""

import numpy as np

from loraplex_kernels._amx import tile_dot, tile_load, tile_store, tile_zero
from loraplex_kernels._numba import piece, pointer_f32, pointer_i32, pointer_u16, prefetch_rows
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
from loraplex_kernels.attention._numba_rows import zero

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
def begin(lanes, tokens, group, position, dim, queries, state, lasts, sums):
    """Empty queries and state of each 16 lanes: maxima, totals; and the last key each lane sees
    (-1: not a lane)."""
    zero(queries, lanes * dim // 2)
    zero(sums, lanes * dim)
    zero(state, 2 * lanes)
    last = pointer_f32(lasts)
    for lane in range(lanes):
        last[lane] = position + lane // group if lane < tokens * group else -1
    for lane in range(0, lanes, LANES):
        store(state + 2 * lane * 4, splat(HIDDEN))


@piece
def gather_queries(q, token, head, heads, dim, lane, out):
    """Some heads of a token as right factors: for each 16 lanes and 32 dimensions [16 pairs, 16 lanes, 2]."""
    queries, token_bytes = q
    source = pointer_i32(queries + token * token_bytes + head * dim * 2)
    for i in range(heads):
        target = pointer_i32(out + (lane + i) // LANES * LANES * dim * 2)
        for pair in range(dim // 2):
            target[pair * LANES + (lane + i) % LANES] = source[i * dim // 2 + pair]


@piece
def copy_lane(source, from_lane, target, to_lane, dim):
    """What a lane has added up, from one set of places to another."""
    state, mine = pointer_f32(source[2]), pointer_f32(target[2])
    at = from_lane // LANES * 2 * LANES + from_lane % LANES
    to = to_lane // LANES * 2 * LANES + to_lane % LANES
    mine[to], mine[to + LANES] = state[at], state[at + LANES]
    for d in range(0, dim * 4, 64):
        store(target[4] + to_lane * dim * 4 + d, load(source[4] + from_lane * dim * 4 + d))


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
def meet_keys(k_cache, v_cache, runs, ahead, known, lanes, key, scale, window, dim, places):
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
def finish(lanes, heads, group, state, sums, dim, shares, out):
    """Sums over totals, a row of dim for each lane; out: the first token's first head of the group."""
    for lane in range(lanes):
        if lane % LANES == 0:
            total = load(state + (2 * lane + LANES) * 4)
            store(shares, splat(np.float32(1)) / largest(total, splat(np.float32(1e-30))))
        share = splat(pointer_f32(shares)[lane % LANES])
        target = out + (lane // group * heads + lane % group) * dim * 2
        for d in range(0, dim, 16):
            store_bf16(target + d * 2, load(sums + (lane * dim + d) * 4) * share)
