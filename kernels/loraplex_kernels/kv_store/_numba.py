"""Rotary embedding and key/value writing on the CPU, one pass over a token."""

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
    pointer_f32,
    pointer_i64,
    store_row,
    threads_for,
)
from loraplex_kernels.kv_store import reference


@piece
def _copy_heads(source, heads, dim, dtype, item, cache, slot, block_size):
    """One token's keys or values to its place in the cache; source: float32 [heads, dim]."""
    block, offset = slot // block_size, slot % block_size
    for h in range(heads):
        place = cache + (((block * heads + h) * block_size) + offset) * dim * item
        store_row(source + h * dim * 4, dim, place, dtype)


@piece
def _rotate(row, dim, cos, sin, half):
    """Rotate the pairs (i, half + i) of a float32 head in place; elements past 2 * half stay."""
    x, c, s = pointer_f32(row), pointer_f32(cos), pointer_f32(sin)
    for i in range(half):
        first, second = x[i], x[half + i]
        x[i] = first * c[i] - second * s[i]
        x[half + i] = second * c[i] + first * s[i]


@piece
def _rotary_token(dtype, q, k, v, cos, sin, half, k_cache, v_cache, slot, shape, scratch):
    heads, kv_heads, block_size, dim = shape
    item, row = ITEM_BYTES[dtype], address_of(scratch)
    load_row(q, dtype, row, heads * dim)
    for h in range(heads):
        _rotate(row + h * dim * 4, dim, cos, sin, half)
    store_row(row, heads * dim, q, dtype)
    load_row(k, dtype, row, kv_heads * dim)
    for h in range(kv_heads):
        _rotate(row + h * dim * 4, dim, cos, sin, half)
    _copy_heads(row, kv_heads, dim, dtype, item, k_cache, slot, block_size)
    load_row(v, dtype, row, kv_heads * dim)
    _copy_heads(row, kv_heads, dim, dtype, item, v_cache, slot, block_size)


@piece
def _rotary_rows(
    begin, end, dtype, qkv, strides, tables, half, positions, k_cache, v_cache, slots, shape
):
    heads, _, _, dim = shape
    q, k, v = qkv
    scratch = np.empty(heads * dim, np.float32)
    for t in range(begin, end):
        position = pointer_i64(positions)[t] * half * 4
        _rotary_token(
            dtype,
            q + t * strides[0],
            k + t * strides[1],
            v + t * strides[2],
            tables[0] + position,
            tables[1] + position,
            half,
            k_cache,
            v_cache,
            pointer_i64(slots)[t],
            shape,
            scratch,
        )


@kernel(f"void({', '.join(['int64'] * 20)})")
def rotate_and_write(
    dtype,
    num_tokens,
    q,
    k,
    v,
    q_bytes,
    k_bytes,
    v_bytes,
    cos,
    sin,
    half,
    positions,
    k_cache,
    v_cache,
    slots,
    heads,
    kv_heads,
    block_size,
    dim,
    threads,
):
    qkv, strides, tables = (q, k, v), (q_bytes, k_bytes, v_bytes), (cos, sin)
    shape = (heads, kv_heads, block_size, dim)
    if threads == 1:
        _rotary_rows(
            0,
            num_tokens,
            dtype,
            qkv,
            strides,
            tables,
            half,
            positions,
            k_cache,
            v_cache,
            slots,
            shape,
        )
        return
    for thread in numba.prange(threads):
        begin, end = num_tokens * thread // threads, num_tokens * (thread + 1) // threads
        _rotary_rows(
            begin, end, dtype, qkv, strides, tables, half, positions, k_cache, v_cache, slots, shape
        )


def rotary_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """As loraplex_kernels.kv_store.rotary_write_kv, on the CPU."""
    item = q.element_size()
    rotate_and_write(
        dtype_code(q.dtype),
        q.shape[0],
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        q.stride(0) * item,
        k.stride(0) * item,
        v.stride(0) * item,
        cos.data_ptr(),
        sin.data_ptr(),
        cos.shape[1],
        positions.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        slot_mapping.data_ptr(),
        q.shape[1],
        *k_cache.shape[1:],
        threads_for(q.shape[0]),
    )


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """As loraplex_kernels.kv_store.write_kv; torch's scatter serves it, no step runs it."""
    reference.write_kv(k, v, k_cache, v_cache, slot_mapping)
