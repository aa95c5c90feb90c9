"""Rotary embedding and key/value writing on the GPU: one program for a token and a kv head."""

import torch
import triton
import triton.language as tl

from loraplex_kernels.kv_store import reference


@triton.jit
def rotate(source, target, c, s, i, HALF: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rotate one head's pairs from source to target and copy what lies beyond them."""
    live = i < HALF
    first = tl.load(source + i, mask=live, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + i, mask=live, other=0.0).to(tl.float32)
    kind = target.dtype.element_ty
    tl.store(target + i, (first * c - second * s).to(kind), mask=live)
    tl.store(target + HALF + i, (second * c + first * s).to(kind), mask=live)
    if 2 * HALF < DIM:
        d = 2 * HALF + tl.arange(0, BLOCK)
        tl.store(target + d, tl.load(source + d, mask=d < DIM, other=0.0), mask=d < DIM)


@triton.jit
def rotary_write_kernel(
    q,
    k,
    v,
    cos,
    sin,
    positions,
    k_cache,
    v_cache,
    slots,
    q_stride,
    k_stride,
    v_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BLOCK_HALF)
    table = tl.load(positions + token) * HALF + i
    c = tl.load(cos + table, mask=i < HALF, other=0.0)
    s = tl.load(sin + table, mask=i < HALF, other=0.0)
    for g in range(GROUP):
        here = q + token * q_stride + (head * GROUP + g) * DIM
        rotate(here, here, c, s, i, HALF, DIM, BLOCK_D)
    slot = tl.load(slots + token)
    place = ((slot // PAGE * KV_HEADS + head) * PAGE + slot % PAGE) * DIM
    rotate(k + token * k_stride + head * DIM, k_cache + place, c, s, i, HALF, DIM, BLOCK_D)
    d = tl.arange(0, BLOCK_D)
    value = tl.load(v + token * v_stride + head * DIM + d, mask=d < DIM, other=0.0)
    tl.store(v_cache + place + d, value, mask=d < DIM)


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
    """As loraplex_kernels.kv_store.rotary_write_kv, on the GPU."""
    num_kv_heads, page, dim = k_cache.shape[1:]
    half = cos.shape[1]
    rotary_write_kernel[(q.shape[0], num_kv_heads)](
        q,
        k,
        v,
        cos,
        sin,
        positions,
        k_cache,
        v_cache,
        slot_mapping,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        GROUP=q.shape[1] // num_kv_heads,
        KV_HEADS=num_kv_heads,
        PAGE=page,
        DIM=dim,
        HALF=half,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_D=triton.next_power_of_2(dim),
        num_warps=1,
    )


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """As loraplex_kernels.kv_store.write_kv: torch's scatter serves it on every device."""
    reference.write_kv(k, v, k_cache, v_cache, slot_mapping)
