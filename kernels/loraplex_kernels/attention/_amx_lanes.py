"""What 16 lanes do with 32 keys, on AMX tiles: scores, weights and sums of paged attention.

A lane is one query head of one token. scores [32 keys, 16 lanes] = keys @ queries^T, then
sums [16 lanes, dim + 16] += weights @ (values, ones). Lanes never mix. Of up to eight, as one or two
decodes have, weights are made lane by lane, 16 keys side by side; of more, key by key: the same bits.
"""

import numpy as np

from loraplex_kernels._amx import column, tile_dot, tile_load, tile_store, tile_zero
from loraplex_kernels._numba import piece, pointer_f32, pointer_i32, pointer_u16, prefetch_rows
from loraplex_kernels._vector import (
    any_greater,
    as_bf16,
    count_from,
    exp_vector,
    first_in_order,
    if_at_most,
    interleave_bf16,
    largest,
    largest_lane,
    load,
    second_in_order,
    splat,
    store,
    store_bf16,
    store_pairs,
    transpose_words,
)
from loraplex_kernels.attention._numba_rows import zero

LANES = 16
KEYS = 32  # of one step: the inner dimension of a tile product
LANE_BYTES = LANES * 4  # one float32 of each lane
FEW = 8  # lanes
HIDDEN = np.float32(-1e30)
TWO_ONES = np.int32(0x3F803F80)  # bfloat16

# Tiles 2 and 3 have as many rows as there are lanes, all others 16.
load_first, load_second, load_queries = tile_load(4), tile_load(7), tile_load(6)
zero_scores, dot_scores = tile_zero(0, 1), tile_dot((0, 4, 6), (1, 7, 6))
store_first, store_second = tile_store(0), tile_store(1)
load_weights, load_values, load_sums = tile_load(3), tile_load(6), tile_load(2)
dot_sums, store_sums = tile_dot((2, 3, 6)), tile_store(2)


@piece
def begin(lanes, tokens, group, position, dim, places):
    """Empty queries, sums and maxima; ones behind the values; and the last key each lane sees (-1: not
    a lane)."""
    queries, _, state, lasts, sums, values, _ = places
    zero(queries, lanes * dim // 2)
    zero(sums, lanes * (dim + 16))
    last = pointer_f32(lasts)
    for lane in range(lanes):
        last[lane] = position + lane // group if lane < tokens * group else -1
    for lane in range(0, lanes, LANES):
        store(state + lane * 4, splat(HIDDEN))
    ones = pointer_i32(values + dim * 64)
    for pair in range(16 * KEYS // 2):
        ones[pair] = TWO_ONES


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
    pointer_f32(target[2])[to_lane] = pointer_f32(source[2])[from_lane]
    row = (dim + 16) * 4
    for d in range(0, row, 64):
        store(target[4] + to_lane * row + d, load(source[4] + from_lane * row + d))


@piece
def _ask(run, offset, num_bytes):
    """For a part of a run of the next step: few lines can be under way, so they are spread over this one."""
    if run:
        prefetch_rows(run + offset, num_bytes)


@piece
def _score(first, second, queries, dim, ahead, out):
    """float32 [32 keys, 16 lanes] of two runs of 16 keys."""
    zero_scores()
    for step in range(dim // 32):
        _ask(ahead[1], step * 1024, 1024)
        load_first(first + step * 64, dim * 2)
        load_second(second + step * 64, dim * 2)
        load_queries(queries + step * 1024, 64)
        dot_scores()
    store_first(out, LANE_BYTES)
    store_second(out + 16 * LANE_BYTES, LANE_BYTES)


@piece
def _pair_values(first, second, known, dim, ahead, out):
    """Values of two runs of 16 keys as right factors, [16 pairs of keys, 16, 2] each.

    Two have 32 dimensions, in the order of `interleave_bf16`. Unknown keys' values are zero.
    """
    for pair in range(KEYS // 2):
        run, row = pair // 8, 2 * (pair % 8) * dim * 2
        _ask(ahead[0], pair * 2 * dim, 2 * dim)
        source = (first if run == 0 else second) + row
        for d in range(0, dim, 32):
            target = out + d * 64 + pair * 64
            if 2 * pair + 1 < known:
                interleave_bf16(source + d * 2, source + (dim + d) * 2, target, 1024)
            else:
                zero(target, 16)
                zero(target + 1024, 16)
                if 2 * pair < known:
                    bits = pointer_u16(source + d * 2)
                    for i in range(32):
                        words = pointer_i32(target + i % 8 // 4 * 1024)
                        words[i // 8 * 4 + i % 4] = np.int32(bits[i])


@piece
def _times(row, dim, factor):
    for d in range(0, (dim + 16) * 4, 64):
        store(row + d, load(row + d) * factor)


@piece
def _weigh(scores, key, lasts, scale, window, state, sums, lanes, dim, weights):
    """Turn scores into weights, a left factor [16 lanes, 32 keys]; state: maxima."""
    last, before = load(lasts), load(state)
    first = last - splat(np.float32(window - 1))
    hidden, factor, most = splat(HIDDEN), splat(scale), before
    is_partly_hidden = window > 0 or any_greater(splat(np.float32(key + KEYS - 1)), last)
    for t in range(KEYS):
        value = load(scores + t * LANE_BYTES) * factor
        if is_partly_hidden:
            at = splat(np.float32(key + t))
            value = if_at_most(at, last, value, hidden)
            if window > 0:
                value = if_at_most(first, at, value, hidden)
        store(scores + t * LANE_BYTES, value)
        most = largest(most, value)
    if any_greater(most, before):
        store(state, most)
        store(weights, exp_vector(before - most))  # its place is free as yet
        for lane in range(lanes):
            factor = splat(pointer_f32(weights)[lane])
            _times(sums + lane * (dim + 16) * 4, dim, factor)
    nothing, floor = splat(np.float32(0)), splat(HIDDEN)
    for pair in range(KEYS // 2):
        one, two = load(scores + 2 * pair * LANE_BYTES), load(scores + (2 * pair + 1) * LANE_BYTES)
        one = as_bf16(if_at_most(one, floor, nothing, exp_vector(one - most)))
        two = as_bf16(if_at_most(two, floor, nothing, exp_vector(two - most)))
        store_pairs(scores + pair * LANE_BYTES, one, two)
    transpose_words(scores, LANE_BYTES, weights, 64)


@piece
def _weigh_few(scores, key, lasts, scale, window, state, sums, lanes, dim, weights):
    """The same, a lane at a time."""
    maxima, ends = pointer_f32(state), pointer_f32(lasts)
    hidden, factor, nothing = splat(HIDDEN), splat(scale), splat(np.float32(0))
    at, behind = count_from(np.float32(key)), count_from(np.float32(key + 16))
    for lane in range(lanes):
        before, end = splat(maxima[lane]), splat(ends[lane])
        one = column(scores + lane * 4) * factor
        two = column(scores + 16 * LANE_BYTES + lane * 4) * factor
        if ends[lane] < key + KEYS - 1:
            one, two = if_at_most(at, end, one, hidden), if_at_most(behind, end, two, hidden)
        if window > 0:
            first = splat(ends[lane] - np.float32(window - 1))
            one, two = if_at_most(first, at, one, hidden), if_at_most(first, behind, two, hidden)
        most = largest(before, largest(one, two))
        if any_greater(most, before):
            maxima[lane] = largest_lane(most)
            most = splat(maxima[lane])
            _times(sums + lane * (dim + 16) * 4, dim, exp_vector(before - most))
        one = if_at_most(one, hidden, nothing, exp_vector(one - most))
        two = if_at_most(two, hidden, nothing, exp_vector(two - most))
        store_bf16(weights + lane * 64, one)
        store_bf16(weights + lane * 64 + 32, two)


@piece
def _add_values(values, weights, dim, ahead, sums):
    load_weights(weights, 64)
    for d in range(0, dim + 16, 16):
        if d < dim:
            _ask(ahead[2], d * 32, 512)
            _ask(ahead[3], d * 32, 512)
        load_sums(sums + d * 4, (dim + 16) * 4)
        load_values(values + d * 64, 64)
        dot_sums()
        store_sums(sums + d * 4, (dim + 16) * 4)


@piece
def meet_keys(k_cache, v_cache, runs, ahead, known, lanes, key, scale, window, dim, places):
    """Meet the 32 keys of two runs with all lanes."""
    queries, scores, state, lasts, sums, values, weights = places
    first, second = k_cache + runs[0], k_cache + runs[1]
    _pair_values(v_cache + runs[0], v_cache + runs[1], known, dim, ahead, values)
    asked = ahead
    for lane in range(0, lanes, LANES):
        _score(first, second, queries + lane * dim * 2, dim, asked, scores)
        mine, count = sums + lane * (dim + 16) * 4, min(LANES, lanes - lane)
        at, ends = state + lane * 4, lasts + lane * 4
        if count <= FEW:
            _weigh_few(scores, key, ends, scale, window, at, mine, count, dim, weights)
        else:
            _weigh(scores, key, ends, scale, window, at, mine, count, dim, weights)
        _add_values(values, weights, dim, asked, mine)
        asked = (np.int64(0), np.int64(0), np.int64(0), np.int64(0))


@piece
def finish(lanes, heads, group, sums, dim, out):
    """Sums over totals, a row of dim for each lane; out: the first token's first head of the group."""
    for lane in range(lanes):
        row = sums + lane * (dim + 16) * 4
        share = splat(np.float32(1)) / largest(load(row + dim * 4), splat(np.float32(1e-30)))
        target = out + (lane // group * heads + lane % group) * dim * 2
        for d in range(0, dim, 32):
            one, two = load(row + d * 4), load(row + d * 4 + 64)
            store_bf16(target + d * 2, first_in_order(one, two) * share)
            store_bf16(target + d * 2 + 32, second_in_order(one, two) * share)
