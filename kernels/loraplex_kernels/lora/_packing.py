"""Packs a whole adapter in one call that leaves the interpreter to the steps beside it."""

from collections.abc import Sequence

import numpy as np
import torch

from loraplex_kernels._numba import kernel, piece, pointer_i64, pointer_u16
from loraplex_kernels.lora.packed import COLUMNS, INNER

FIELDS = 9  # of a job


@piece
def _pack_a(a, row_stride, rank, in_features, out):
    source, target = pointer_u16(a), pointer_u16(out)
    for first in range(0, rank, COLUMNS):
        ranks = min(COLUMNS, rank - first)
        for r in range(ranks):
            row, at = (first + r) * row_stride, first * in_features + r * 2
            for k in range(row, row + in_features, 2):
                target[at] = source[k]
                target[at + 1] = source[k + 1]
                at += ranks * 2


@piece
def _pack_b(b, row_stride, column_stride, rank, width, out):
    source, target = pointer_u16(b), pointer_u16(out)
    for first in range(0, rank, INNER):
        ranks, at = min(INNER, rank - first), first * width
        for block in range(0, width, COLUMNS):
            for pair in range(ranks // 2):
                row = (first + 2 * pair) * row_stride
                for column in range(block, block + COLUMNS):
                    target[at] = source[row + column * column_stride]
                    target[at + 1] = source[row + row_stride + column * column_stride]
                    at += 2
        if ranks % 2:
            row = (first + ranks - 1) * row_stride
            for column in range(width):
                target[at + column] = source[row + column * column_stride]


@piece
def _job(a, a_stride, b, b_stride, b_column_stride, rank, in_features, width, out):
    _pack_a(a, a_stride, rank, in_features, out)
    _pack_b(b, b_stride, b_column_stride, rank, width, out + rank * in_features * 2)


@kernel("void(int64, int64)", parallel=False)
def pack_jobs(jobs, num_jobs):
    for i in range(num_jobs):
        j = pointer_i64(jobs + i * FIELDS * 8)
        _job(j[0], j[1], j[2], j[3], j[4], j[5], j[6], j[7], j[8])


def pack_into(
    memory: torch.Tensor, factors: Sequence[tuple[int, torch.Tensor, torch.Tensor]]
) -> None:
    """As loraplex_kernels.lora.pack_into."""
    jobs = np.array(
        [
            (
                a.data_ptr(),
                a.stride(0),
                b.data_ptr(),
                *b.stride(),
                *a.shape,
                b.shape[1],
                memory.data_ptr() + start * memory.itemsize,
            )
            for start, a, b in factors
        ],
        np.int64,
    )
    pack_jobs(jobs.ctypes.data, len(factors))
