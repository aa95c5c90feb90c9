"""Grouped LoRA on the GPU: shrink to fixed partial sums, then reduce and expand; no atomics."""

import numpy as np
import torch
import triton
import triton.language as tl

from loraplex_kernels.gpu_configs import (
    CHUNK_ROWS,
    LORA,
    LoraConfig,
    LoraKey,
    TokenBucket,
    architecture_of,
    rank_class,
)
from loraplex_kernels.lora.segments import LoraSegments
from loraplex_kernels.lora.slab import MAX_SLICES, LoraSlab

VARYING = (  # from step to step, or from projection to projection: one compiled kernel serves all
    "num_rows",
    "num_lora_tokens",
    "num_slices",
    "permutation",
    "chunk_slot",
    "chunk_start",
    "chunk_length",
)


@triton.jit(do_not_specialize=VARYING)
def shrink_kernel(
    x,
    a,
    partial,  # [SPLIT_K, num_slices, num_lora_tokens, BLOCK_R] float32
    row_start,
    rank,
    permutation,
    chunk_slot,
    chunk_start,
    chunk_length,
    x_stride,
    num_rows,
    num_lora_tokens,
    in_features,
    num_slices,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
):
    chunk = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2).to(tl.int64)
    length = tl.load(chunk_length + chunk)
    if length == 0:
        return
    slot = tl.load(chunk_slot + chunk).to(tl.int64)
    r = tl.load(rank + slot * num_slices + s)
    if r == 0:
        return
    start = tl.load(chunk_start + chunk).to(tl.int64)
    row = tl.load(row_start + slot).to(tl.int64)
    offs_m = tl.arange(0, BLOCK_M)
    offs_r = tl.arange(0, BLOCK_R)
    live_m = offs_m < length
    live_r = offs_r < r
    token = tl.load(permutation + start + offs_m, mask=live_m, other=0).to(tl.int64)
    a_rows = a + (s * num_rows + row + offs_r) * in_features
    acc = tl.zeros((BLOCK_M, BLOCK_R), dtype=tl.float32)
    for k in range(split * BLOCK_K, in_features, SPLIT_K * BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        live_k = offs_k < in_features
        x_tile = tl.load(
            x + token[:, None] * x_stride + offs_k[None, :],
            mask=live_m[:, None] & live_k[None, :],
            other=0.0,
        )
        a_tile = tl.load(
            a_rows[None, :] + offs_k[:, None], mask=live_r[None, :] & live_k[:, None], other=0.0
        )
        acc = tl.dot(x_tile, a_tile, acc, input_precision="ieee")
    out = partial + ((split * num_slices + s) * num_lora_tokens + start) * BLOCK_R
    tl.store(out + offs_m[:, None] * BLOCK_R + offs_r[None, :], acc, mask=live_m[:, None])


@triton.jit(do_not_specialize=VARYING)
def expand_kernel(
    y,
    partial,
    b0,
    b1,
    b2,
    row_start,
    rank,
    scale,
    permutation,
    chunk_slot,
    chunk_start,
    chunk_length,
    y_stride,
    num_lora_tokens,
    w0,  # columns of each slice; 0: there is none
    w1,
    w2,
    num_slices,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT_K: tl.constexpr,
):
    chunk = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    t0 = tl.cdiv(w0, BLOCK_N)
    t1 = tl.cdiv(w1, BLOCK_N)
    length = tl.load(chunk_length + chunk)
    if length == 0:
        return
    slot = tl.load(chunk_slot + chunk).to(tl.int64)
    if tile < t0:
        s, b, width, column, first = 0, b0, w0, 0, tile * BLOCK_N
    elif tile < t0 + t1:
        s, b, width, column, first = 1, b1, w1, w0, (tile - t0) * BLOCK_N
    else:
        s, b, width, column, first = 2, b2, w2, w0 + w1, (tile - t0 - t1) * BLOCK_N
    r = tl.load(rank + slot * num_slices + s)
    if r == 0:
        return
    start = tl.load(chunk_start + chunk).to(tl.int64)
    row = tl.load(row_start + slot).to(tl.int64)
    offs_m = tl.arange(0, BLOCK_M)
    offs_r = tl.arange(0, BLOCK_R)
    offs_n = first + tl.arange(0, BLOCK_N)
    live_m = offs_m < length
    live_n = offs_n < width
    total = tl.zeros((BLOCK_M, BLOCK_R), dtype=tl.float32)
    for split in tl.static_range(SPLIT_K):
        part = partial + ((split * num_slices + s) * num_lora_tokens + start) * BLOCK_R
        total += tl.load(
            part + offs_m[:, None] * BLOCK_R + offs_r[None, :], mask=live_m[:, None], other=0.0
        )
    total *= tl.load(scale + slot * num_slices + s)
    b_tile = tl.load(
        b + (row + offs_r[:, None]) * width + offs_n[None, :],
        mask=(offs_r < r)[:, None] & live_n[None, :],
        other=0.0,
    )
    delta = tl.dot(total.to(b_tile.dtype), b_tile, input_precision="ieee")
    token = tl.load(permutation + start + offs_m, mask=live_m, other=0).to(tl.int64)
    place = y + token[:, None] * y_stride + column + offs_n[None, :]
    live = live_m[:, None] & live_n[None, :]
    before = tl.load(place, mask=live, other=0.0).to(tl.float32)
    tl.store(place, (before + delta).to(y.dtype.element_ty), mask=live)


def chunk_table(segments: LoraSegments, device: torch.device) -> tuple[torch.Tensor, ...]:
    """The chunk table on a device: as the step brought it, or moved in one copy."""
    if segments.on_device is not None:
        return segments.on_device
    arrays = (
        segments.permutation,
        segments.chunk_slot,
        segments.chunk_start,
        segments.chunk_length,
    )
    packed = torch.from_numpy(np.concatenate(arrays)).to(device, non_blocking=True)
    parts: tuple[torch.Tensor, ...] = packed.split([len(a) for a in arrays])
    return parts


def config_for(block_r: int, segments: LoraSegments, device: torch.device) -> LoraConfig:
    tokens: TokenBucket = "few" if segments.max_chunk <= CHUNK_ROWS["few"] else "many"
    return LORA[LoraKey(architecture_of(device), block_r, tokens)]


def apply_lora(
    y: torch.Tensor,
    x: torch.Tensor,
    slab: LoraSlab,
    segments: LoraSegments,
    config: LoraConfig | None = None,
) -> None:
    """As loraplex_kernels.lora.apply_lora, on the GPU."""
    block_r = rank_class(slab.max_rank)
    config = config or config_for(block_r, segments, x.device)
    assert segments.max_chunk <= config.block_m
    permutation, *chunks = chunk_table(segments, x.device)
    num_slices, num_rows, in_features = slab.a.shape
    num_tokens = len(permutation)
    partial = torch.empty(
        config.split_k, num_slices, num_tokens, block_r, dtype=torch.float32, device=x.device
    )
    shrink_kernel[(segments.num_chunks, num_slices, config.split_k)](
        x,
        slab.a,
        partial,
        slab.row_start,
        slab.rank,
        permutation,
        *chunks,
        x.stride(0),
        num_rows,
        num_tokens,
        in_features,
        num_slices,
        BLOCK_M=config.block_m,
        BLOCK_R=block_r,
        BLOCK_K=config.block_k,
        SPLIT_K=config.split_k,
        num_warps=config.num_warps,
        num_stages=config.shrink_stages,
    )
    widths = (*slab.slice_widths, *(0,) * (MAX_SLICES - num_slices))
    bs = (*slab.b, *(slab.b[0],) * (MAX_SLICES - num_slices))
    tiles = sum(triton.cdiv(w, config.block_n) for w in widths)
    expand_kernel[(segments.num_chunks, tiles)](
        y,
        partial,
        *bs,
        slab.row_start,
        slab.rank,
        slab.scale,
        permutation,
        *chunks,
        y.stride(0),
        num_tokens,
        *widths,
        num_slices,
        BLOCK_M=config.block_m,
        BLOCK_R=block_r,
        BLOCK_N=config.block_n,
        SPLIT_K=config.split_k,
        num_warps=config.num_warps,
        num_stages=config.expand_stages,
    )
