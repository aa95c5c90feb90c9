"""Sequences that begin with the same blocks: found, walked together, and the same bits as alone."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.paged_step import SCALE, Step

from loraplex_kernels.attention import Companies, build_companies, reference, write_kv
from loraplex_kernels.attention.companies import MAX_MEMBERS, STEP
from loraplex_kernels.testing import assert_close, poisoned


class Shape(NamedTuple):
    group: int  # query heads of a kv head
    kv_heads: int
    dim: int
    block: int


class Flock(NamedTuple):
    """Sequences that have the full blocks of their first tokens in common; each: (new tokens, own tokens)."""

    common: int
    own: list[tuple[int, int]]


def make_step(flocks: list[Flock], shape: Shape, seed: int) -> Step:
    """The sequences of all flocks, in any order, their blocks in any places."""
    group, kv_heads, dim, block = shape
    draw = torch.Generator().manual_seed(seed)
    sequences = []  # (new tokens, length, full blocks in common with the flock, which flock)
    for number, flock in enumerate(flocks):
        common = flock.common // block
        for new, own in flock.own:
            sequences.append((new, common * block + max(new, own), common, number))
    sequences = [sequences[i] for i in torch.randperm(len(sequences), generator=draw)]
    width = max(-(-length // block) for _, length, _, _ in sequences)
    needed = sum(flock.common // block for flock in flocks) + len(sequences) * (width + 1)
    pages = iter(torch.randperm(needed, generator=draw).to(torch.int32).tolist())
    shared = [[next(pages) for _ in range(flock.common // block)] for flock in flocks]
    # What lies beyond a sequence's blocks may be anything: nobody shares it
    tables = torch.zeros(len(sequences), width + 1, dtype=torch.int32)
    caches = [poisoned(needed, kv_heads, block, dim, dtype=torch.bfloat16) for _ in range(2)]
    for i, (_, length, common, flock) in enumerate(sequences):
        blocks = [*shared[flock], *(next(pages) for _ in range(-(-length // block) - common))]
        tables[i, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        position = torch.arange(length)
        slots = tables[i][position // block].long() * block + position % block
        k, v = (torch.randn(length, kv_heads, dim, generator=draw) for _ in range(2))
        write_kv(k.bfloat16(), v.bfloat16(), *caches, slots)
    new = torch.tensor([new for new, _, _, _ in sequences])
    return Step(
        q=torch.randn(int(new.sum()), kv_heads * group, dim, generator=draw).bfloat16(),
        k_cache=caches[0],
        v_cache=caches[1],
        block_tables=tables,
        query_start=torch.tensor([0, *new.cumsum(0)], dtype=torch.int32),
        context_lengths=torch.tensor([length for _, length, _, _ in sequences], dtype=torch.int32),
    )


def check_integrity(step: Step, companies: Companies) -> None:
    decodes = np.flatnonzero(np.diff(step.query_start.numpy()) == 1)
    assert sorted(companies.members) == list(decodes)
    assert companies.starts[-1] == len(decodes)
    for i, shared in enumerate(companies.shared):
        members = companies.members[companies.starts[i] : companies.starts[i + 1]]
        assert 1 <= len(members) <= MAX_MEMBERS
        assert shared % STEP == 0
        assert shared < step.context_lengths[members].min()
        tables = step.block_tables[members, : -(-int(shared) // step.k_cache.shape[2])]
        assert (tables == tables[0]).all()


SHAPES = st.builds(
    Shape,
    group=st.sampled_from([1, 3, 4, 8]),
    kv_heads=st.sampled_from([1, 2, 3]),
    dim=st.sampled_from([32, 64, 128]),
    block=st.sampled_from([16, 32, 48]),
)
DECODES = st.tuples(st.just(1), st.integers(1, 80))
CHUNKS = st.tuples(st.integers(2, 40), st.integers(2, 80))
FLOCKS = st.builds(
    Flock,
    common=st.integers(0, 200),
    own=st.lists(st.one_of(DECODES, DECODES, DECODES, CHUNKS), min_size=1, max_size=12),
)


@given(
    flocks=st.lists(FLOCKS, min_size=1, max_size=4), shape=SHAPES, seed=st.integers(0, 2**31 - 1)
)
@settings(max_examples=60, deadline=None)
def test_who_walks_together_comes_to_the_same_bits_as_alone(
    flocks: list[Flock], shape: Shape, seed: int
) -> None:
    step = make_step(flocks, shape, seed)
    companies = step.companies()
    if companies is not None:
        check_integrity(step, companies)
    alone = step.attend()
    assert torch.equal(step.attend(companies=companies), alone)
    expected = reference.paged_attention(step.q.float(), *step[1:], SCALE)
    assert_close(alone, expected, torch.bfloat16)


@pytest.mark.parametrize("members", [1, 2, 5, MAX_MEMBERS, MAX_MEMBERS + 1, 32])
@pytest.mark.parametrize("common", [31, 32, 47, 512, 520])
def test_what_a_company_shares_is_walked_once(members: int, common: int) -> None:
    step = make_step([Flock(common, [(1, 20)] * members)], Shape(3, 1, 32, 16), seed=members)
    companies = step.companies()
    shared = common // STEP * STEP
    if members == 1 or not shared:
        assert companies is None
        return
    assert companies is not None
    check_integrity(step, companies)
    walks = -(-members // MAX_MEMBERS)
    assert companies.spared == shared * (members - walks)
    sizes = np.diff(companies.starts)
    assert sizes.max() - sizes.min() <= 1
    assert torch.equal(step.attend(companies=companies), step.attend())


def test_companies_are_those_that_spare_the_most() -> None:
    """A long beginning of three is not given up for a short one that a fourth has, too."""
    block, rows = 16, [[5, 6, 11, 12, 13, 14, n] for n in (20, 21, 22)]
    tables = np.array([[5, 6, 30, 31, 32, 33, 34], *rows, [40, 41, 42, 43, 44, 45, 46]], np.int32)
    lengths = np.full(5, 100, np.int32)
    companies = build_companies(tables, np.arange(6, dtype=np.int32), lengths, block)
    assert companies is not None
    assert companies.shared.tolist() == [96, 0, 0]
    assert sorted(companies.members[:3]) == [1, 2, 3]


def test_prompts_share_no_walk() -> None:
    step = make_step([Flock(64, [(2, 20), (1, 20), (9, 30)])], Shape(3, 1, 32, 16), seed=0)
    assert step.companies() is None


def test_a_window_is_met_by_each_alone() -> None:
    step = make_step([Flock(128, [(1, 20)] * 4)], Shape(3, 2, 32, 16), seed=0)
    companies = step.companies()
    assert companies is not None
    assert torch.equal(step.attend(window=40, companies=companies), step.attend(window=40))
