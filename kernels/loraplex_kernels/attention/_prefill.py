"""Paged attention of prompts on the GPU, with whatever of them is in the cache already."""

import torch
import triton
import triton.language as tl

from loraplex_kernels.gpu_configs import AttentionConfig


@triton.jit
def fold_keys(
    q_tile,
    key,
    position,
    end_key,
    k_cache,
    v_cache,
    table,
    head,
    scale,
    softcap,
    largest,
    total,
    acc,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,
):
    """Take one tile of keys into the running softmax: its largest score, its sum, its weighted values."""
    offs_d = tl.arange(0, BLOCK_D)
    live_d = offs_d < DIM
    live_key = key < end_key
    page = tl.load(table + key // PAGE, mask=live_key, other=0).to(tl.int64)
    place = ((page * KV_HEADS + head) * PAGE + key % PAGE) * DIM
    k_tile = tl.load(
        k_cache + place[None, :] + offs_d[:, None],
        mask=live_d[:, None] & live_key[None, :],
        other=0.0,
    )
    scores = tl.dot(q_tile, k_tile, input_precision="ieee") * scale
    if SOFTCAP:
        # tanh by exp, which every target has
        e = tl.exp(-2.0 * tl.abs(scores) / softcap)
        t = (1.0 - e) / (1.0 + e)
        scores = softcap * tl.where(scores < 0, -t, t)
    seen = (key[None, :] <= position[:, None]) & live_key[None, :]
    if WINDOW > 0:
        seen = seen & (key[None, :] > position[:, None] - WINDOW)
    scores = tl.where(seen, scores, -1.0e30)
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.where(seen, tl.exp(scores - new_largest[:, None]), 0.0)
    factor = tl.exp(largest - new_largest)
    total = total * factor + tl.sum(weights, 1)
    v_tile = tl.load(
        v_cache + place[:, None] + offs_d[None, :],
        mask=live_key[:, None] & live_d[None, :],
        other=0.0,
    )
    acc = acc * factor[:, None]
    acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
    return new_largest, total, acc


@triton.jit(do_not_specialize=("table_stride", "num_seqs"))
def prefill_kernel(
    q,
    k_cache,
    v_cache,
    out,
    tables,
    starts,
    lengths,
    scale,
    softcap,
    q_stride,
    table_stride,
    num_seqs,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # heads of a kv head, padded to a power of two
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    # Sequence i owns the tiles from starts[i] // BLOCK_Q + i: at most one too many each
    low = 0
    high = num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle
    begin = tl.load(starts + low)
    end = tl.load(starts + low + 1)
    first = begin + (tile - (begin // BLOCK_Q + low)) * BLOCK_Q
    if first >= end:
        return
    length = tl.load(lengths + low)
    rows = tl.arange(0, BLOCK_M)
    token = (first + rows // GROUP).to(tl.int64)
    head_in_group = rows % GROUP
    live_row = (token < end) & (head_in_group < HEADS // KV_HEADS)
    position = length - end + first + rows // GROUP
    offs_d = tl.arange(0, BLOCK_D)
    live_d = offs_d < DIM
    q_head = head * (HEADS // KV_HEADS) + head_in_group
    q_tile = tl.load(
        q + token[:, None] * q_stride + q_head[:, None] * DIM + offs_d[None, :],
        mask=live_row[:, None] & live_d[None, :],
        other=0.0,
    )
    largest = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    end_key = length - end + tl.minimum(first + BLOCK_Q, end)
    table = tables + tl.cast(low, tl.int64) * table_stride
    from_key = 0
    if WINDOW > 0:
        from_key = tl.maximum(length - end + first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    for n in range(from_key, end_key, BLOCK_N):
        largest, total, acc = fold_keys(
            q_tile,
            n + tl.arange(0, BLOCK_N),
            position,
            end_key,
            k_cache,
            v_cache,
            table,
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
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(
        out + (token[:, None] * HEADS + q_head[:, None]) * DIM + offs_d[None, :],
        acc.to(out.dtype.element_ty),
        mask=live_row[:, None] & live_d[None, :],
    )


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lengths: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    config: AttentionConfig,
) -> torch.Tensor:
    """As loraplex_kernels.attention.paged_attention: any number of tokens of each sequence."""
    num_tokens, num_heads, dim = q.shape
    num_seqs, (num_kv_heads, page) = len(context_lengths), k_cache.shape[1:3]
    group = triton.next_power_of_2(num_heads // num_kv_heads)
    assert group <= config.block_m
    tiles = num_tokens // (config.block_m // group) + num_seqs
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    prefill_kernel[(tiles, num_kv_heads)](
        q,
        k_cache,
        v_cache,
        out,
        block_tables,
        query_start,
        context_lengths,
        scale,
        softcap or 1.0,
        q.stride(0),
        block_tables.stride(0),
        num_seqs,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        GROUP=group,
        PAGE=page,
        DIM=dim,
        BLOCK_D=max(16, triton.next_power_of_2(dim)),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        WINDOW=window or 0,
        SOFTCAP=softcap is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out
