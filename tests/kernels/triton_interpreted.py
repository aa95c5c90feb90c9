"""The Triton kernels on CPU tensors; run by test_triton.py with TRITON_INTERPRET=1, never in bfloat16.

The interpreter takes about 16 ms for a program, so grids are small.
"""

import numpy as np
import pytest
import torch

from loraplex_kernels.activation import _triton as activation_triton
from loraplex_kernels.activation import reference as activation_reference
from loraplex_kernels.attention import _triton as attention_triton
from loraplex_kernels.attention import reference as attention_reference
from loraplex_kernels.gpu_configs import AttentionConfig, LoraConfig
from loraplex_kernels.kv_store import _triton as kv_triton
from loraplex_kernels.kv_store import reference as kv_reference
from loraplex_kernels.lora import LoraSlab, build_segments
from loraplex_kernels.lora import _triton as lora_triton
from loraplex_kernels.lora import reference as lora_reference
from loraplex_kernels.norm import _triton as norm_triton
from loraplex_kernels.norm import reference as norm_reference
from loraplex_kernels.testing import RANKS, assert_close, poisoned, token_slots

DTYPES = (
    pytest.param(torch.float32, id="float32"),
    pytest.param(torch.float16, id="float16"),
)
SMALL = LoraConfig(16, 32, 2, 64, 4, 1)


def filled_slab(widths: tuple[int, ...], dtype: torch.dtype) -> LoraSlab:
    starts = np.concatenate([[0], np.cumsum(RANKS)[:-1]]).astype(np.int32)
    slab = LoraSlab.empty(72, widths, sum(RANKS), torch.from_numpy(starts), dtype)
    slab.a.normal_().mul_(72**-0.5)
    for b in slab.b:
        b.normal_()
    slab.rank.copy_(torch.tensor(RANKS)[:, None].expand(-1, len(widths)))
    slab.rank[1, -1] = 0
    slab.scale.uniform_(0.5, 2.0)
    return slab


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(96, 24, 24), (50, 50), (40,)])
@pytest.mark.parametrize(("mix", "num_tokens"), [("one", 1), ("one", 40), ("random", 63)])
def test_lora(dtype: torch.dtype, widths: tuple[int, ...], mix: str, num_tokens: int) -> None:
    slab = filled_slab(widths, dtype)
    x = torch.randn(num_tokens, 72).to(dtype)
    y = torch.randn(num_tokens, sum(widths)).to(dtype)
    slots = token_slots(mix, num_tokens, len(RANKS), seed=5)
    expected = lora_reference.apply_lora(y.float(), x, slab, torch.from_numpy(slots))
    segments = build_segments(slots)
    assert segments is not None
    lora_triton.apply_lora(y, x, slab, segments, config=SMALL)
    assert_close(y, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(6, 2, 40), (3, 3, 32)])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (13, None), (None, 5.0)])
@pytest.mark.parametrize("lengths", [((1, 1), (1, 37), (1, 16)), ((5, 5), (1, 18), (20, 33))])
def test_attention(
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    window: int | None,
    softcap: float | None,
    lengths: tuple[tuple[int, int], ...],
) -> None:
    num_heads, num_kv_heads, dim = heads
    caches = [poisoned(10, num_kv_heads, 16, dim, dtype=dtype) for _ in range(2)]
    pages = torch.randperm(10).to(torch.int32)
    tables = pages[:9].view(3, 3).contiguous()
    for i, (_, context) in enumerate(lengths):
        position = torch.arange(context)
        slots = tables[i][position // 16].long() * 16 + position % 16
        k, v = (torch.randn(context, num_kv_heads, dim).to(dtype) for _ in range(2))
        kv_triton.write_kv(k, v, *caches, slots)
    new = [n for n, _ in lengths]
    arguments = (
        *caches,
        tables,
        torch.tensor(np.cumsum([0, *new]), dtype=torch.int32),
        torch.tensor([c for _, c in lengths], dtype=torch.int32),
        0.2,
        window,
        softcap,
    )
    q = torch.randn(sum(new), num_heads, dim).to(dtype)
    expected = attention_reference.paged_attention(q.float(), *arguments)
    config = AttentionConfig(16, 32, 4, 1)
    assert_close(attention_triton.paged_attention(q, *arguments, config=config), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [20, 8, 1])
def test_rotary(dtype: torch.dtype, half: int) -> None:
    heads, kv_heads, dim, num_tokens = 6, 2, 40, 7
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    angle = torch.rand(100, half) * 6
    positions, slots = torch.randint(0, 100, (num_tokens,)), torch.randperm(64)[:num_tokens]
    results = []
    for function in (kv_triton.rotary_write_kv, kv_reference.rotary_write_kv):
        q, k, v = (
            part.unflatten(-1, (-1, dim))
            for part in qkv.clone().split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
        )
        caches = [torch.zeros(4, kv_heads, 16, dim, dtype=dtype) for _ in range(2)]
        function(q, k, v, angle.cos(), angle.sin(), positions, *caches, slots)
        results.append((q, *caches))
    for mine, theirs in zip(*results, strict=True):
        assert_close(mine, theirs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_activation(dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 66).to(dtype), torch.randn(66).to(dtype)
    mine, theirs = x.clone().mul_(2), x.clone().mul_(2)
    expected = norm_reference.rms_norm(x, weight, 1e-5, theirs)
    assert_close(norm_triton.rms_norm(x, weight, 1e-5, mine, 0.0), expected, dtype)
    assert_close(mine, theirs, dtype)
    assert_close(
        norm_triton.rms_norm(x, weight, 1e-5, None, 1.0),
        norm_reference.rms_norm(x.float(), weight, 1e-5, None, 1.0),
        dtype,
    )
    assert_close(
        activation_triton.silu_and_multiply(x),
        activation_reference.silu_and_multiply(x.float()),
        dtype,
    )
    assert_close(
        activation_triton.gelu_tanh_and_multiply(x),
        activation_reference.gelu_tanh_and_multiply(x.float()),
        dtype,
    )
