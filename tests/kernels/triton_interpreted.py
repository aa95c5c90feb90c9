"""The Triton kernels on CPU tensors; run by test_triton.py with TRITON_INTERPRET=1, never in bfloat16.

The interpreter takes about 16 ms for a program, so grids are small.
"""

import numpy as np
import pytest
import torch

from loraplex_kernels.activation import _triton as activation_triton
from loraplex_kernels.activation import reference as activation_reference
from loraplex_kernels.attention import _decode as decode_triton
from loraplex_kernels.attention import _triton as attention_triton
from loraplex_kernels.attention import reference as attention_reference
from loraplex_kernels.gpu_configs import (
    DECODE,
    LORA,
    PREFILL,
    AttentionConfig,
    LoraConfig,
)
from loraplex_kernels.kv_store import _triton as kv_triton
from loraplex_kernels.kv_store import reference as kv_reference
from loraplex_kernels.lora import LoraSegments, LoraSlab, build_segments
from loraplex_kernels.lora import _triton as lora_triton
from loraplex_kernels.lora import reference as lora_reference
from loraplex_kernels.norm import _triton as norm_triton
from loraplex_kernels.norm import reference as norm_reference
from loraplex_kernels.sampling import _triton as sampling_triton
from loraplex_kernels.sampling import reference as sampling_reference
from loraplex_kernels.testing import RANKS, assert_close, poisoned, token_slots

DTYPES = (
    pytest.param(torch.float32, id="float32"),
    pytest.param(torch.float16, id="float16"),
)
SMALL = LoraConfig(16, 32, 2, 64, 4, 1)
LORA_SHIPPED = sorted({(key.rank_class, config) for key, config in LORA.items()})
ATTENTION_SHIPPED = sorted(
    {(key.head_dim, config, n) for n, t in ((1, DECODE), (5, PREFILL)) for key, config in t.items()}
)


def filled_slab(
    widths: tuple[int, ...],
    dtype: torch.dtype,
    in_features: int = 72,
    ranks: tuple[int, ...] = RANKS,
) -> LoraSlab:
    starts = np.concatenate([[0], np.cumsum(ranks)[:-1]]).astype(np.int32)
    rows = torch.from_numpy(starts)
    slab = LoraSlab.empty(in_features, widths, sum(ranks), rows, dtype, max_rank=max(ranks))
    slab.a.normal_().mul_(in_features**-0.5)
    for b in slab.b:
        b.normal_()
    slab.rank.copy_(torch.tensor(ranks)[:, None].expand(-1, len(widths)))
    slab.scale.uniform_(0.5, 2.0)
    return slab


def with_empty_chunks(segments: LoraSegments, count: int) -> LoraSegments:
    """As a graph has it: a tail of zeros behind the permutation and behind the chunks."""
    permutation, slot, start, length = (
        np.concatenate([part, np.zeros(count, np.int32)])
        for part in (
            segments.permutation,
            segments.chunk_slot,
            segments.chunk_start,
            segments.chunk_length,
        )
    )
    return LoraSegments(permutation, slot, start, length, segments.max_chunk)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(96, 24, 24), (50, 50), (40,)])
@pytest.mark.parametrize(
    ("mix", "num_tokens"),
    [
        ("one", 1),
        ("one", 40),
        ("different", 63),
        ("random", 63),
        ("random", 200),
        ("base", 63),
    ],
)
def test_lora(dtype: torch.dtype, widths: tuple[int, ...], mix: str, num_tokens: int) -> None:
    slab = filled_slab(widths, dtype)
    slab.rank[1, -1] = 0
    x = torch.randn(num_tokens, 72).to(dtype)
    y = torch.randn(num_tokens, sum(widths)).to(dtype)
    slots = token_slots(mix, num_tokens, len(RANKS), seed=5)
    expected = lora_reference.apply_lora(y.float(), x, slab, torch.from_numpy(slots))
    segments = build_segments(slots)
    if mix == "base":
        assert segments is None, "then nothing is launched; a table of empty chunks is"
        nothing = np.zeros(0, np.int32)
        segments = LoraSegments(nothing, nothing, nothing, nothing)
    assert segments is not None
    lora_triton.apply_lora(y, x, slab, with_empty_chunks(segments, 3), config=SMALL)
    assert_close(y, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("ranks", "config"), LORA_SHIPPED)
def test_lora_as_shipped(dtype: torch.dtype, ranks: int, config: LoraConfig) -> None:
    """Every configuration: one run that fills no chunk, of an adapter that fills no class."""
    slab = filled_slab((40,), dtype, in_features=136, ranks=(ranks - 1, 4))
    x, y = torch.randn(9, 136).to(dtype), torch.randn(9, 40).to(dtype)
    slots = np.array([0] * 7 + [-1, 1], np.int32)
    expected = lora_reference.apply_lora(y.float(), x, slab, torch.from_numpy(slots))
    segments = build_segments(slots, config.block_m)
    assert segments is not None
    assert lora_triton.config_for(ranks, segments, x.device) == config
    lora_triton.apply_lora(y, x, slab, segments)
    assert_close(y, expected, dtype)


def cached(
    lengths: tuple[tuple[int, int], ...], kv_heads: int, dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Caches, block tables, starts and lengths for (new tokens, context) of each sequence."""
    width = max(-(-context // 16) for _, context in lengths)
    caches = [poisoned(len(lengths) * width + 1, kv_heads, 16, dim, dtype=dtype) for _ in range(2)]
    pages = torch.randperm(len(caches[0])).to(torch.int32)
    tables = pages[: len(lengths) * width].view(len(lengths), width).contiguous()
    for i, (_, context) in enumerate(lengths):
        position = torch.arange(context)
        slots = tables[i][position // 16].long() * 16 + position % 16
        k, v = (torch.randn(context, kv_heads, dim).to(dtype) for _ in range(2))
        kv_triton.write_kv(k, v, *caches, slots)
    starts = torch.tensor(np.cumsum([0, *(n for n, _ in lengths)]), dtype=torch.int32)
    return (*caches, tables, starts, torch.tensor([c for _, c in lengths], dtype=torch.int32))


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
    arguments = (*cached(lengths, num_kv_heads, dim, dtype), 0.2, window, softcap)
    q = torch.randn(sum(n for n, _ in lengths), num_heads, dim).to(dtype)
    expected = attention_reference.paged_attention(q.float(), *arguments)
    config = AttentionConfig(16, 32, 4, 1)
    assert_close(attention_triton.paged_attention(q, *arguments, config=config), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (45, None), (None, 5.0)])
def test_split_decode(dtype: torch.dtype, window: int | None, softcap: float | None) -> None:
    """One, two and three splits of 32 keys, and none of them full; alone the same bits as together."""
    lengths = ((1, 17), (1, 64), (1, 85))
    caches, (tables, _, contexts) = (made := cached(lengths, 2, 40, dtype))[:2], made[2:]
    q = torch.randn(3, 6, 40).to(dtype)
    expected = attention_reference.paged_attention(q.float(), *made, 0.2, window, softcap)
    last = (0.2, window, softcap, AttentionConfig(16, 16, 4, 1, num_splits=3), 32)
    together = decode_triton.decode_attention(q, *caches, tables, contexts, *last)
    assert_close(together, expected, dtype)
    for i in range(3):
        alone = decode_triton.decode_attention(
            q[i : i + 1], *caches, tables[i : i + 1], contexts[i : i + 1], *last
        )
        assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "config", "num_new"), ATTENTION_SHIPPED)
def test_attention_as_shipped(
    dtype: torch.dtype, dim: int, config: AttentionConfig, num_new: int
) -> None:
    """Every configuration, on a context of two splits or two tiles."""
    arguments = (*cached(((num_new, 300),), 1, dim, dtype), dim**-0.5, None, None)
    q = torch.randn(num_new, 2, dim).to(dtype)
    expected = attention_reference.paged_attention(q.float(), *arguments)
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_pick(dtype: torch.dtype) -> None:
    """Weights that are often nothing, drawn at the edges too; alone the same as together."""
    weights = torch.rand(7, 101).mul_(torch.rand(7, 101) < 0.4).to(dtype).float()
    weights[0] = 0
    weights[0, 57] = 0.25
    uniform = torch.rand(7, dtype=torch.float64)
    uniform[1], uniform[2] = 0.0, 1 - 2.0**-48
    found = sampling_triton.pick(weights, uniform, block=16)
    assert found.tolist() == sampling_reference.pick(weights, uniform).tolist()
    assert int(found[0]) == 57
    assert bool((weights.gather(1, found[:, None]) > 0).all())
    assert torch.equal(sampling_triton.pick(weights[3:4], uniform[3:4], block=16), found[3:4])
