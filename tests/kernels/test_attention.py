"""Paged attention on the CPU: equal to the definition, blind to batch and chunk borders."""

import pytest
import torch
from tests.kernels.paged_step import Step

from loraplex_kernels.attention import reference, rotary_write_kv, write_kv
from loraplex_kernels.kv_store import reference as kv_reference
from loraplex_kernels.testing import assert_close, poisoned

DTYPES = (torch.float32, torch.bfloat16)
BLOCK = 16
# (new tokens, tokens in the cache): decodes and prefill chunks of one step
STEP = ((1, 1), (1, 17), (5, 5), (1, 63), (33, 33), (20, 50), (1, 200), (16, 32))


def make_step(
    lengths: tuple[tuple[int, int], ...], heads: tuple[int, int, int], dtype: torch.dtype
) -> Step:
    num_heads, num_kv_heads, dim = heads
    generator = torch.Generator().manual_seed(len(lengths))
    per_sequence = [-(-context // BLOCK) for _, context in lengths]
    pages = torch.randperm(sum(per_sequence) + 3, generator=generator).to(torch.int32)
    tables = torch.full((len(lengths), max(per_sequence) + 1), 2**30, dtype=torch.int32)
    caches = [poisoned(len(pages), num_kv_heads, BLOCK, dim, dtype=dtype) for _ in range(2)]
    used = 0
    for i, (_, context) in enumerate(lengths):
        tables[i, : per_sequence[i]] = pages[used : used + per_sequence[i]]
        used += per_sequence[i]
        position = torch.arange(context)
        slots = tables[i][position // BLOCK].long() * BLOCK + position % BLOCK
        k, v = (torch.randn(context, num_kv_heads, dim, generator=generator) for _ in range(2))
        write_kv(k.to(dtype), v.to(dtype), *caches, slots)
    new = [n for n, _ in lengths]
    return Step(
        q=torch.randn(sum(new), num_heads, dim, generator=generator).to(dtype),
        k_cache=caches[0],
        v_cache=caches[1],
        block_tables=tables,
        query_start=torch.tensor([0, *torch.tensor(new).cumsum(0)], dtype=torch.int32),
        context_lengths=torch.tensor([c for _, c in lengths], dtype=torch.int32),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 32), (6, 2, 40), (4, 1, 256)])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (13, None), (None, 5.0), (13, 5.0)])
def test_equals_the_definition(
    dtype: torch.dtype, heads: tuple[int, int, int], window: int | None, softcap: float | None
) -> None:
    step = make_step(STEP, heads, dtype)
    expected = reference.paged_attention(
        step.q.float(),
        step.k_cache,
        step.v_cache,
        step.block_tables,
        step.query_start,
        step.context_lengths,
        0.125,
        window,
        softcap,
    )
    assert_close(step.attend(window, softcap), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 32), (4, 1, 256), (10, 2, 64)])
@pytest.mark.parametrize("window", [None, 13])
def test_a_row_does_not_depend_on_chunk_borders(
    dtype: torch.dtype, heads: tuple[int, int, int], window: int | None
) -> None:
    context = 70
    whole = make_step(((context, context),), heads, dtype)
    expected = whole.attend(window)
    for chunk in (1, 7, 16, 33):
        for start in range(0, context, chunk):
            end = min(start + chunk, context)
            k_cache, v_cache = whole.k_cache.clone(), whole.v_cache.clone()
            later = torch.arange(end, context)
            pages = whole.block_tables[0][later // BLOCK].long()
            k_cache[pages, :, later % BLOCK] = float("nan")  # not written yet
            v_cache[pages, :, later % BLOCK] = float("nan")
            part = Step(
                whole.q[start:end],
                k_cache,
                v_cache,
                whole.block_tables,
                torch.tensor([0, end - start], dtype=torch.int32),
                torch.tensor([end], dtype=torch.int32),
            )
            assert torch.equal(part.attend(window), expected[start:end])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_does_not_depend_on_its_neighbours(dtype: torch.dtype) -> None:
    step = make_step(STEP, (9, 3, 64), dtype)
    together = step.attend()
    for i in range(len(STEP)):
        first, last = int(step.query_start[i]), int(step.query_start[i + 1])
        alone = Step(
            step.q[first:last],
            step.k_cache,
            step.v_cache,
            step.block_tables[i : i + 1],
            torch.tensor([0, last - first], dtype=torch.int32),
            step.context_lengths[i : i + 1],
        )
        assert torch.equal(alone.attend(), together[first:last])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [32, 8])
def test_rotary_rotates_queries_and_fills_the_cache(dtype: torch.dtype, half: int) -> None:
    heads, kv_heads, dim, num_tokens = 9, 3, 64, 63
    qkv = torch.randn(num_tokens, (heads + 2 * kv_heads) * dim).to(dtype)
    angle = torch.outer(torch.arange(100.0), 1000.0 ** -torch.linspace(0, 1, half))
    positions = torch.randint(0, 100, (num_tokens,))
    slots = torch.randperm(8 * BLOCK)[:num_tokens]
    results = []
    for function in (rotary_write_kv, kv_reference.rotary_write_kv):
        mine = qkv.clone()
        q, k, v = (
            part.unflatten(-1, (-1, dim))
            for part in mine.split([heads * dim, kv_heads * dim, kv_heads * dim], -1)
        )
        k_cache, v_cache = (torch.zeros(8, kv_heads, BLOCK, dim, dtype=dtype) for _ in range(2))
        function(q, k, v, angle.cos(), angle.sin(), positions, k_cache, v_cache, slots)
        results.append((q.clone(), k_cache, v_cache))
    (q, k_cache, v_cache), (q_ref, k_ref, v_ref) = results
    assert_close(q, q_ref, dtype)
    assert_close(k_cache, k_ref, dtype)
    assert torch.equal(v_cache, v_ref)
    assert not torch.equal(q.flatten(1), qkv[:, : heads * dim])
