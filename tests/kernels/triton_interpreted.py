"""The Triton kernels on CPU tensors; run by test_triton.py with TRITON_INTERPRET=1, never in bfloat16.

The interpreter takes about 16 ms for a program, so grids are small.
"""

from itertools import cycle, islice, product

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
from loraplex_kernels.lora import Int32Array, LoraSegments, LoraSlab, build_segments
from loraplex_kernels.lora import _triton as lora_triton
from loraplex_kernels.lora import reference as lora_reference
from loraplex_kernels.norm import _triton as norm_triton
from loraplex_kernels.norm import reference as norm_reference
from loraplex_kernels.sampling import _triton as sampling_triton
from loraplex_kernels.sampling import reference as sampling_reference
from loraplex_kernels.testing import NUM_TOKENS, RANKS, assert_close, poisoned, token_slots

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
    ("mix", "num_tokens"), [*product(("one", "random", "base"), NUM_TOKENS), ("different", 63)]
)
def test_lora(dtype: torch.dtype, widths: tuple[int, ...], mix: str, num_tokens: int) -> None:
    slab = filled_slab(widths, dtype)
    slab.rank[1, -1] = 0
    check_lora(slab, token_slots(mix, num_tokens, len(RANKS), seed=5), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
def test_lora_of_as_many_adapters_as_tokens(dtype: torch.dtype, num_tokens: int) -> None:
    """All different, their ranks mixed; a chunk for each, so programs are few: one slice, one split."""
    slab = filled_slab((40,), dtype, ranks=tuple(islice(cycle(RANKS), num_tokens)))
    slots = token_slots("different", num_tokens, num_tokens, seed=5)
    check_lora(slab, slots, dtype, SMALL._replace(block_k=128, split_k=1))


def check_lora(
    slab: LoraSlab, slots: Int32Array, dtype: torch.dtype, config: LoraConfig = SMALL
) -> None:
    x = torch.randn(len(slots), slab.in_features).to(dtype)
    y = torch.randn(len(slots), sum(slab.slice_widths)).to(dtype)
    expected = lora_reference.apply_lora(y.float(), x, slab, torch.from_numpy(slots))
    segments = build_segments(slots)
    if segments is None:
        assert slots.max() < 0, "then nothing is launched; a table of empty chunks is"
        nothing = np.zeros(0, np.int32)
        segments = LoraSegments(nothing, nothing, nothing, nothing)
    lora_triton.apply_lora(y, x, slab, with_empty_chunks(segments, 3), config=config)
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
@pytest.mark.parametrize(
    "lengths",
    [((1, 1), (1, 37), (1, 16)), ((5, 5), (1, 18), (20, 33))],
)
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
@pytest.mark.parametrize("lengths", [((63, 63),), ((140, 160), (60, 61))])
def test_attention_of_many_tokens(dtype: torch.dtype, lengths: tuple[tuple[int, int], ...]) -> None:
    arguments = (*cached(lengths, 2, 40, dtype), 0.2)
    q = torch.randn(sum(n for n, _ in lengths), 6, 40).to(dtype)
    expected = attention_reference.paged_attention(q.float(), *arguments)
    config = AttentionConfig(64, 64, 4, 1)
    found = attention_triton.paged_attention(q, *arguments, None, None, config)
    assert_close(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_seqs", NUM_TOKENS)
def test_decode_of_many_sequences(dtype: torch.dtype, num_seqs: int) -> None:
    arguments = (*cached(tuple((1, 1 + i % 19) for i in range(num_seqs)), 1, 24, dtype), 0.2)
    q = torch.randn(num_seqs, 2, 24).to(dtype)
    expected = attention_reference.paged_attention(q.float(), *arguments)
    config = AttentionConfig(16, 32, 4, 1)
    found = attention_triton.paged_attention(q, *arguments, None, None, config)
    assert_close(found, expected, dtype)


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
@pytest.mark.parametrize(
    ("half", "kv_heads", "num_tokens"),
    [(20, 2, 7), (8, 2, 7), (1, 2, 7), *((20, 1, num_tokens) for num_tokens in NUM_TOKENS)],
)
def test_rotary(dtype: torch.dtype, half: int, kv_heads: int, num_tokens: int) -> None:
    heads, dim = 3 * kv_heads, 40
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    angle = torch.rand(100, half) * 6
    positions, slots = torch.randint(0, 100, (num_tokens,)), torch.randperm(208)[:num_tokens]
    results = []
    for function in (kv_triton.rotary_write_kv, kv_reference.rotary_write_kv):
        q, k, v = (
            part.unflatten(-1, (-1, dim))
            for part in qkv.clone().split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
        )
        caches = [torch.zeros(13, kv_heads, 16, dim, dtype=dtype) for _ in range(2)]
        function(q, k, v, angle.cos(), angle.sin(), positions, *caches, slots)
        results.append((q, *caches))
    for mine, theirs in zip(*results, strict=True):
        assert_close(mine, theirs, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
def test_norm_and_activation(dtype: torch.dtype, num_tokens: int) -> None:
    x, weight = torch.randn(num_tokens, 66).to(dtype), torch.randn(66).to(dtype)
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
@pytest.mark.parametrize("num_rows", [7, *NUM_TOKENS])
def test_pick(dtype: torch.dtype, num_rows: int) -> None:
    """Weights that are often nothing, drawn at the edges too; alone the same as together."""
    weights = torch.rand(num_rows, 101).mul_(torch.rand(num_rows, 101) < 0.4).to(dtype).float()
    weights[0] = 0
    weights[0, 57] = 0.25
    uniform = torch.rand(num_rows, dtype=torch.float64)
    uniform[1:3] = torch.tensor([0.0, 1 - 2.0**-48], dtype=torch.float64)[: num_rows - 1]
    found = sampling_triton.pick(weights, uniform, block=16)
    assert found.tolist() == sampling_reference.pick(weights, uniform).tolist()
    assert int(found[0]) == 57
    assert bool((weights.gather(1, found[:, None]) > 0).all())
    assert torch.equal(sampling_triton.pick(weights[-1:], uniform[-1:], block=16), found[-1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", NUM_TOKENS)
def test_most_likely(dtype: torch.dtype, num_rows: int) -> None:
    """The first of equals, which lie in one block and in two; a row of nothing but -inf."""
    logits = torch.randn(num_rows, 101).mul_(2).round_().to(dtype)
    logits[-1, :] = float("-inf")
    found = sampling_triton.most_likely(logits, block=64)
    assert found.tolist() == sampling_reference.most_likely(logits).tolist()
    assert int((logits == logits.amax(-1, keepdim=True)).sum()) > len(logits)


def tied(num_rows: int) -> torch.Tensor:
    """Logits on a grid, so that many are equal; zeros of both signs, and what min_p has left out."""
    logits = torch.randn(num_rows, 101).mul_(2).round_().div_(2)
    return logits.masked_fill_(torch.rand(num_rows, 101) < 0.3, float("-inf"))


@pytest.mark.parametrize(("is_tied", "block"), [(False, 128), (True, 64)])
def test_what_top_k_keeps_in_float32(is_tied: bool, block: int) -> None:
    """Bit for bit, at every kind of limit: one, some, more than are left, all, none asked for."""
    top_k = torch.tensor([0, 1, 2, 20, 99, 101, 500])
    logits = tied(len(top_k)) if is_tied else torch.randn(len(top_k), 101)
    mine, theirs = logits.clone(), logits.clone()
    sampling_triton.keep_top_k(mine, top_k, block=block)
    sampling_reference.keep_top_k(theirs, top_k)
    assert torch.equal(mine, theirs)
    assert [int((mine[i] > float("-inf")).sum()) for i in (0, 6)] == [
        int((logits[i] > float("-inf")).sum()) for i in (0, 6)
    ]
    alone = logits[3:4].clone()
    sampling_triton.keep_top_k(alone, top_k[3:4], block=block)
    assert torch.equal(alone, mine[3:4])


@pytest.mark.parametrize(("is_tied", "block"), [(False, 128), (True, 64)])
def test_what_top_p_keeps_in_float32(is_tied: bool, block: int) -> None:
    """Bit for bit, where a nucleus ends between equals too, and where rounding lets no set reach it."""
    shares = [1e-320, 0.01, 0.3, 0.5, 0.9, 0.999, 1 - 2.0**-53, 1.0, 2.0]
    top_p = torch.tensor(shares, dtype=torch.float64)
    logits = tied(len(top_p)) if is_tied else torch.randn(len(top_p), 101) * 3
    probabilities = logits.softmax(-1)
    if is_tied:
        # sums that are exact: two of these reach one half, and all are needed for nine tenths
        probabilities[3:5] = 0
        probabilities[3:5, 60:68], probabilities[3:5, 10:12] = 2.0**-4, 2.0**-2
    mine, theirs = probabilities.clone(), probabilities.clone()
    sampling_triton.keep_top_p(mine, top_p, block=block)
    sampling_reference.keep_top_p(theirs, top_p)
    assert torch.equal(mine, theirs)
    assert not is_tied or [int((mine[i] > 0).sum()) for i in (3, 4)] == [2, 10]
    assert int((mine[0] > 0).sum()) == int((probabilities[0] == probabilities[0].amax()).sum())
    assert torch.equal(mine[7:], probabilities[7:])


@pytest.mark.parametrize("num_rows", NUM_TOKENS)
def test_what_is_kept_of_many_rows_in_float32(num_rows: int) -> None:
    """Bit for bit, every fifth row by a limit of its own; the others are kept as they are."""
    logits, is_cut = torch.randn(num_rows, 101), torch.arange(num_rows) % 5 == 0
    top_k = torch.where(is_cut, torch.arange(num_rows) % 103 + 1, 0)
    top_p = torch.linspace(0.01, 0.99, num_rows, dtype=torch.float64).masked_fill(~is_cut, 1.0)
    for keep, values, limits in (
        ("keep_top_k", logits, top_k),
        ("keep_top_p", logits.softmax(-1), top_p),
    ):
        mine, theirs = values.clone(), values.clone()
        getattr(sampling_triton, keep)(mine, limits, block=128)
        getattr(sampling_reference, keep)(theirs, limits)
        assert torch.equal(mine, theirs)
