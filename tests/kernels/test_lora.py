"""Grouped LoRA on the CPU: equal to the definition, deterministic, blind to its neighbours."""

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loraplex_kernels.device import has_amx
from loraplex_kernels.lora import (
    LoraSlab,
    PackedSlab,
    Slab,
    apply_lora,
    build_segments,
    pack,
    reference,
)
from loraplex_kernels.testing import NUM_TOKENS, RANKS, assert_close, token_slots

NUM_SLOTS = len(RANKS)
DTYPES = (torch.float32, torch.bfloat16)
# qkv with GQA, plain, odd widths; then what AMX tiles can serve
SHAPES = ((72, (96, 24, 24)), (72, (40,)), (33, (50, 50)), (96, (96, 48, 48)), (160, (64,)))


def filled_slab(in_features: int, widths: tuple[int, ...], dtype: torch.dtype) -> LoraSlab:
    """Slot i has rank RANKS[i]; the last slice of every second slot is left alone."""
    generator = torch.Generator().manual_seed(in_features + len(widths))
    starts = np.concatenate([[0], np.cumsum(RANKS)[:-1]]).astype(np.int32)
    slab = LoraSlab.empty(in_features, widths, sum(RANKS), torch.from_numpy(starts), dtype)
    slab.a.normal_(generator=generator).mul_(in_features**-0.5)
    for b in slab.b:
        b.normal_(generator=generator)
    slab.rank.copy_(torch.tensor(RANKS)[:, None].expand(-1, len(widths)))
    slab.rank[1::2, -1] = 0
    slab.scale.uniform_(0.5, 2.0, generator=generator)
    return slab


def kinds_of(slab: LoraSlab) -> list[Slab]:
    """The slab, and what a CPU with tiles has instead."""
    serves = PackedSlab.serves(slab.in_features, slab.slice_widths)
    if slab.dtype == torch.bfloat16 and serves and has_amx():
        return [slab, packed(slab)]
    return [slab]


def packed(slab: LoraSlab) -> PackedSlab:
    """The same adapters, the last one first, among NaN."""
    memory = [torch.full((7,), float("nan"), dtype=slab.dtype)]
    start = torch.zeros(slab.rank.shape, dtype=torch.int64)
    for slot in reversed(range(len(start))):
        for s in range(len(slab.slice_widths)):
            start[slot, s] = sum(map(len, memory))
            a, b = slab.factors(s, slot)
            memory.append(pack(a, b) if len(a) else memory[0])
    memory.append(memory[0])
    made = PackedSlab(
        slab.in_features, slab.slice_widths, torch.cat(memory), start, slab.rank, slab.scale
    )
    for slot, s in np.argwhere(slab.rank.numpy() > 0):
        for factor, same in zip(slab.factors(s, slot), made.factors(s, slot), strict=True):
            assert torch.equal(factor, same)
    return made


def inputs(num_tokens: int, slab: Slab) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, slab.in_features, generator=generator)
    y = torch.randn(num_tokens, sum(slab.slice_widths), generator=generator)
    return x.to(slab.dtype), y.to(slab.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("in_features", "widths"), SHAPES)
@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("mix", ["one", "different", "random"])
def test_equals_the_definition(
    mix: str, num_tokens: int, in_features: int, widths: tuple[int, ...], dtype: torch.dtype
) -> None:
    slab = filled_slab(in_features, widths, dtype)
    x, before = inputs(num_tokens, slab)
    slots = token_slots(mix, num_tokens, NUM_SLOTS, seed=7)
    expected = reference.apply_lora(before.float(), x, slab, torch.from_numpy(slots))
    segments = build_segments(slots)
    for kind in kinds_of(slab):
        y = before.clone()
        if segments is not None:
            apply_lora(y, x, kind, segments)
        assert_close(y, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_features", [72, 96])
def test_a_token_does_not_depend_on_its_neighbours(dtype: torch.dtype, in_features: int) -> None:
    slots = token_slots("random", 63, NUM_SLOTS, seed=1)
    for slab in kinds_of(filled_slab(in_features, (96, 48, 48), dtype)):
        x, y = inputs(63, slab)
        together, segments = y.clone(), build_segments(slots, max_chunk=16)
        assert segments is not None
        apply_lora(together, x, slab, segments)
        for i in np.flatnonzero(slots >= 0):
            alone = y[i : i + 1].clone()
            segments = build_segments(slots[i : i + 1], max_chunk=4)
            assert segments is not None
            apply_lora(alone, x[i : i + 1], slab, segments)
            assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 2, 3, 15, 17, 24, 31, 32, 33, 48, 63, 65, 96])
def test_every_rank_reads_its_own_rows_alone(rank: int, dtype: torch.dtype) -> None:
    """Two adapters among rows of NaN, tokens side by side and scattered."""
    in_features, widths, starts = 96, (80, 16), (2, rank + 5)
    row_start = torch.tensor(starts, dtype=torch.int32)
    slab = LoraSlab.empty(in_features, widths, 2 * rank + 8, row_start, dtype)
    for factor in (slab.a, *slab.b):
        factor.fill_(float("nan"))
    slab.rank.fill_(rank)
    slab.scale.fill_(0.5)
    generator = torch.Generator().manual_seed(rank)
    for slot, start in enumerate(starts):
        for s, width in enumerate(widths):
            a = torch.randn(rank, in_features, generator=generator).mul_(in_features**-0.5)
            b = torch.randn(rank, width, generator=generator)
            slab.put(s, start, a.to(dtype), b.to(dtype))
            put_a, put_b = slab.factors(s, slot)
            assert torch.equal(put_a, a.to(dtype))
            assert torch.equal(put_b, b.to(dtype))
    slots = np.array([0] * 21 + [1, -1] * 4 + [1] + [0] * 3, np.int32)
    x, before = inputs(len(slots), slab)
    expected = reference.apply_lora(before.float(), x, slab, torch.from_numpy(slots))
    segments = build_segments(slots)
    assert segments is not None
    for kind in kinds_of(slab):
        y = before.clone()
        apply_lora(y, x, kind, segments)
        assert_close(y, expected, dtype)


def test_tokens_without_adapter_and_columns_outside_keep_their_bits() -> None:
    slab = filled_slab(72, (40,), torch.bfloat16)
    x, wide = inputs(63, filled_slab(72, (50, 50), torch.bfloat16))
    before = wide.clone()
    slots = token_slots("random", 63, NUM_SLOTS, seed=3)
    segments = build_segments(slots)
    assert segments is not None
    apply_lora(wide[:, 30:70], x, slab, segments)  # a view whose rows are 100 apart
    assert torch.equal(wide[:, :30], before[:, :30])
    assert torch.equal(wide[:, 70:], before[:, 70:])
    assert torch.equal(wide[slots < 0], before[slots < 0])
    assert not torch.equal(wide[slots == 2], before[slots == 2])


@given(
    slots=st.lists(st.integers(-1, 5), min_size=1, max_size=80),
    max_chunk=st.integers(1, 20),
)
def test_segments_hold_each_adapter_token_once(slots: list[int], max_chunk: int) -> None:
    token_slots_ = np.array(slots, np.int32)
    segments = build_segments(token_slots_, max_chunk)
    if segments is None:
        assert max(slots) < 0
        return
    seen: list[int] = []
    for slot, start, length in zip(
        segments.chunk_slot, segments.chunk_start, segments.chunk_length, strict=True
    ):
        tokens = segments.permutation[start : start + length]
        assert 1 <= length <= max_chunk
        assert (token_slots_[tokens] == slot).all()
        seen.extend(tokens.tolist())
    assert sorted(seen) == [i for i, slot in enumerate(slots) if slot >= 0]
    assert (np.diff(segments.chunk_slot) >= 0).all()


def test_rows_without_an_adapter_take_no_memory() -> None:
    process, starts = psutil.Process(), torch.zeros(1, dtype=torch.int32)
    before = process.memory_info().rss
    slab = LoraSlab.empty(1024, (1024,), 2**17, starts, torch.float32)
    held = slab.a.nbytes + slab.b[0].nbytes
    slab.put(0, 2**16, torch.ones(64, 1024), torch.ones(64, 1024))
    assert process.memory_info().rss - before < held / 8
    assert slab.a[0, 2**16].all()
    assert not slab.a[0, 2**16 + 64].any()
