"""What a query row does with a block of keys, float32: scores, weights and sums of paged attention."""

import numpy as np

from loraplex_kernels._numba import exp, piece, pointer_f32


@piece
def zero(address, count):
    out = pointer_f32(address)
    for i in range(count):
        out[i] = np.float32(0)


@piece
def begin(rows, dim, sums, state):
    running = pointer_f32(state)
    out = pointer_f32(sums)
    for r in range(rows):
        running[2 * r] = np.float32(-1e30)
        running[2 * r + 1] = np.float32(0)
    for i in range(rows * dim):
        out[i] = np.float32(0)


@piece
def _scores(q, keys, block_size, dim, scale, softcap, scores):
    """scores[t] = scale * q . keys[t], soft-capped, for the whole block; hidden ones are not used."""
    query, out = pointer_f32(q), pointer_f32(scores)
    for t in range(0, block_size, 4):
        k0 = pointer_f32(keys + t * dim * 4)
        k1 = pointer_f32(keys + (t + 1) * dim * 4)
        k2 = pointer_f32(keys + (t + 2) * dim * 4)
        k3 = pointer_f32(keys + (t + 3) * dim * 4)
        s0 = s1 = s2 = s3 = np.float32(0)
        for d in range(dim):
            s0 += query[d] * k0[d]
            s1 += query[d] * k1[d]
            s2 += query[d] * k2[d]
            s3 += query[d] * k3[d]
        out[t], out[t + 1], out[t + 2], out[t + 3] = s0, s1, s2, s3
    for t in range(block_size):
        out[t] *= scale
    if softcap > 0:
        for t in range(block_size):
            out[t] = softcap * np.float32(np.tanh(out[t] / softcap))


@piece
def _largest(scores, first, last):
    values = pointer_f32(scores)
    largest = values[first]
    for t in range(first + 1, last):
        largest = max(largest, values[t])
    return largest


@piece
def _weigh(values, first, last, block_size, dim, scores, largest, total, out):
    """Add exp(score - largest) times each value to out; returns the new sum of weights."""
    weights, sums = pointer_f32(scores), pointer_f32(out)
    for t in range(block_size):
        w = exp(weights[t] - largest)
        weights[t] = w if first <= t < last else np.float32(0)
    for t in range(0, block_size, 4):
        v0 = pointer_f32(values + t * dim * 4)
        v1 = pointer_f32(values + (t + 1) * dim * 4)
        v2 = pointer_f32(values + (t + 2) * dim * 4)
        v3 = pointer_f32(values + (t + 3) * dim * 4)
        w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        total += (w0 + w1) + (w2 + w3)
        for d in range(dim):
            sums[d] += (w0 * v0[d] + w1 * v1[d]) + (w2 * v2[d] + w3 * v3[d])
    return total


@piece
def _rescale(out, factor, dim):
    sums = pointer_f32(out)
    for d in range(dim):
        sums[d] *= factor


@piece
def meet_block(q, out, state, keys, values, first, last, block_size, dim, scale, softcap, scores):
    """One query row meets tokens [first, last) of a block; state: running maximum and sum."""
    running = pointer_f32(state)
    _scores(q, keys, block_size, dim, scale, softcap, scores)
    largest = max(running[0], _largest(scores, first, last))
    if largest > running[0]:
        factor = exp(running[0] - largest)
        running[0] = largest
        running[1] *= factor
        _rescale(out, factor, dim)
    running[1] = _weigh(values, first, last, block_size, dim, scores, largest, running[1], out)


@piece
def finish(rows, dim, sums, state):
    running = pointer_f32(state)
    for r in range(rows):
        _rescale(sums + r * dim * 4, np.float32(1) / running[2 * r + 1], dim)
