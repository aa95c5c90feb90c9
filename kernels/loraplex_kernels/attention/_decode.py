"""Paged attention of one new token a sequence on the GPU: keys read side by side, parts added in order.

How a sequence's keys are cut depends on its own length alone, and the parts are added up in their
order without atomics: the same bits in any company.
"""

import torch
import triton
import triton.language as tl

from loraplex_kernels.attention._prefill import fold_keys
from loraplex_kernels.gpu_configs import LEAST_SPLIT, AttentionConfig

REDUCE_WARPS = 1


@triton.jit
def first_key(length, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """The first key to read, of a whole tile."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // BLOCK_N * BLOCK_N
    return first


@triton.jit
def keys_per_split(
    num_keys, BLOCK_N: tl.constexpr, NUM_SPLITS: tl.constexpr, LEAST_KEYS: tl.constexpr
):
    """Whole tiles, and so many that NUM_SPLITS splits hold all keys."""
    tiles = (num_keys + NUM_SPLITS * BLOCK_N - 1) // (NUM_SPLITS * BLOCK_N)
    return tl.maximum(tiles * BLOCK_N, LEAST_KEYS)


@triton.jit(do_not_specialize=("table_stride",))
def decode_kernel(
    q,
    k_cache,
    v_cache,
    partial,  # [num_seqs, HEADS, NUM_SPLITS, DIM] float32, not yet divided by the sum
    sums,  # [num_seqs, HEADS, NUM_SPLITS, 2] float32: the largest score, the sum of weights
    tables,
    lengths,
    scale,
    softcap,
    q_stride,
    table_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    LEAST_KEYS: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    length = tl.load(lengths + seq)
    first = first_key(length, BLOCK_N, WINDOW)
    size = keys_per_split(length - first, BLOCK_N, NUM_SPLITS, LEAST_KEYS)
    from_key = first + split * size
    if from_key >= length:
        return
    end_key = tl.minimum(from_key + size, length)
    rows = tl.arange(0, BLOCK_M)
    live_row = rows < GROUP
    q_head = head * GROUP + rows
    offs_d = tl.arange(0, BLOCK_D)
    live = live_row[:, None] & (offs_d < DIM)[None, :]
    q_tile = tl.load(
        q + seq * q_stride + q_head[:, None] * DIM + offs_d[None, :], mask=live, other=0.0
    )
    position = tl.zeros((BLOCK_M,), dtype=tl.int32) + (length - 1)
    largest = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for n in range(from_key, end_key, BLOCK_N):
        largest, total, acc = fold_keys(
            q_tile,
            n + tl.arange(0, BLOCK_N),
            position,
            end_key,
            k_cache,
            v_cache,
            tables + seq * table_stride,
            head,
            scale,
            softcap,
            largest,
            total,
            acc,
            KV_HEADS,
            PAGE,
            DIM,
            BLOCK_D,
            WINDOW,
            SOFTCAP,
        )
    part = (seq * HEADS + q_head) * NUM_SPLITS + split
    tl.store(partial + part[:, None] * DIM + offs_d[None, :], acc, mask=live)
    tl.store(sums + part * 2, largest, mask=live_row)
    tl.store(sums + part * 2 + 1, total, mask=live_row)


@triton.jit
def reduce_kernel(
    out,
    partial,
    sums,
    lengths,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    LEAST_KEYS: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    row = seq * HEADS + tl.program_id(1)
    length = tl.load(lengths + seq)
    num_keys = length - first_key(length, BLOCK_N, WINDOW)
    size = keys_per_split(num_keys, BLOCK_N, NUM_SPLITS, LEAST_KEYS)
    offs_d = tl.arange(0, BLOCK_D)
    live_d = offs_d < DIM
    largest = -1.0e30
    total = 0.0
    acc = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for split in range(0, (num_keys + size - 1) // size):
        part = row * NUM_SPLITS + split
        theirs = tl.load(sums + part * 2)
        new_largest = tl.maximum(largest, theirs)
        mine, other = tl.exp(largest - new_largest), tl.exp(theirs - new_largest)
        total = total * mine + tl.load(sums + part * 2 + 1) * other
        acc = acc * mine + tl.load(partial + part * DIM + offs_d, mask=live_d, other=0.0) * other
        largest = new_largest
    value = (acc / total).to(out.dtype.element_ty)
    tl.store(out + row * DIM + offs_d, value, mask=live_d)


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lengths: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    config: AttentionConfig,
    least_split: int = LEAST_SPLIT,
) -> torch.Tensor:
    """As loraplex_kernels.attention.paged_attention where each sequence has one new token."""
    num_seqs, num_heads, dim = q.shape
    num_kv_heads, page = k_cache.shape[1:3]
    assert num_heads // num_kv_heads <= config.block_m
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    parts = (num_seqs, num_heads, config.num_splits)
    partial = torch.empty(*parts, dim, dtype=torch.float32, device=q.device)
    sums = torch.empty(*parts, 2, dtype=torch.float32, device=q.device)
    shape = {
        "HEADS": num_heads,
        "DIM": dim,
        "BLOCK_D": max(16, triton.next_power_of_2(dim)),
        "BLOCK_N": config.block_n,
        "WINDOW": window or 0,
        "NUM_SPLITS": config.num_splits,
        "LEAST_KEYS": triton.cdiv(least_split, config.block_n) * config.block_n,
    }
    decode_kernel[(num_seqs, num_kv_heads, config.num_splits)](
        q,
        k_cache,
        v_cache,
        partial,
        sums,
        block_tables,
        context_lengths,
        scale,
        softcap or 1.0,
        q.stride(0),
        block_tables.stride(0),
        KV_HEADS=num_kv_heads,
        PAGE=page,
        BLOCK_M=config.block_m,
        SOFTCAP=softcap is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **shape,
    )
    reduce_kernel[(num_seqs, num_heads)](
        out, partial, sums, context_lengths, num_warps=REDUCE_WARPS, **shape
    )
    return out
