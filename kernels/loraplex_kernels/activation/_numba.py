"""The gated activations on the CPU: gate * sigmoid(z) * up; for silu, z is the gate itself."""

import numba
import numpy as np
import torch

from loraplex_kernels._numba import (
    ITEM_BYTES,
    address_of,
    dtype_code,
    keep,
    kernel,
    load_row,
    piece,
    store_row,
    threads_for,
)
from loraplex_kernels._vector import (
    absolute,
    exp_vector,
    if_at_most,
    load,
    load_as,
    splat,
    store,
    store_as,
)

ROOT = np.float32(1.5957691216057308)  # 2 * sqrt(2 / pi)
CUBIC = np.float32(0.044715)


@piece
def _activated(is_gelu, gate, up):
    one, nothing = splat(np.float32(1)), splat(np.float32(0))
    z = gate
    if is_gelu:
        z = splat(ROOT) * (gate + splat(CUBIC) * gate * gate * gate)
    e = exp_vector(nothing - absolute(z))  # of -|z| only: it cannot overflow
    return gate * (if_at_most(nothing, z, one, e) / (one + e)) * up


@piece
def _rows(begin, end, dtype, is_gelu, width, gate_up, out):
    item, whole = ITEM_BYTES[dtype], width // 16 * 16
    scratch = np.zeros(32, np.float32)  # for what is left over of a row
    tail = address_of(scratch)
    for t in range(begin, end):
        gate, target = gate_up + t * 2 * width * item, out + t * width * item
        up = gate + width * item
        for i in range(0, whole * item, 16 * item):
            value = _activated(is_gelu, load_as(gate + i, dtype), load_as(up + i, dtype))
            store_as(target + i, dtype, value)
        if whole < width:
            load_row(gate + whole * item, dtype, tail, width - whole)
            load_row(up + whole * item, dtype, tail + 64, width - whole)
            store(tail, _activated(is_gelu, load(tail), load(tail + 64)))
            store_row(tail, width - whole, target + whole * item, dtype)
    keep(scratch)


@kernel(f"void({', '.join(['int64'] * 7)})")
def activate(dtype, is_gelu, num_tokens, width, gate_up, out, threads):
    if threads == 1:
        _rows(0, num_tokens, dtype, is_gelu, width, gate_up, out)
        return
    for thread in numba.prange(threads):
        begin, end = num_tokens * thread // threads, num_tokens * (thread + 1) // threads
        _rows(begin, end, dtype, is_gelu, width, gate_up, out)


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.activation.silu_and_multiply, on the CPU."""
    return _run(gate_up, is_gelu=False)


def gelu_tanh_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.activation.gelu_tanh_and_multiply, on the CPU."""
    return _run(gate_up, is_gelu=True)


def _run(gate_up: torch.Tensor, *, is_gelu: bool) -> torch.Tensor:
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype)
    activate(
        dtype_code(gate_up.dtype),
        is_gelu,
        num_tokens,
        width,
        gate_up.data_ptr(),
        out.data_ptr(),
        threads_for(num_tokens),
    )
    return out
