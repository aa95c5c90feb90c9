"""Zeros in mapped memory: tensors are apart, and dense ones lie in huge pages where there are any."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loraplex_kernels.memory import CACHE_LINE_BYTES, REGION_BYTES, dense_zeros, sparse_zeros

MIB = 1 << 20
DTYPES = (torch.bfloat16, torch.float32, torch.int8)
Zeros = Callable[[Sequence[int], torch.dtype], torch.Tensor]
SHAPES = st.lists(st.integers(0, 70), min_size=1, max_size=3)


@pytest.mark.parametrize("zeros", [dense_zeros, sparse_zeros])
@given(wanted=st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=2, max_size=8))
def test_tensors_are_zeros_of_their_shape_and_apart(
    zeros: Zeros, wanted: list[tuple[list[int], torch.dtype]]
) -> None:
    tensors = [zeros(shape, dtype) for shape, dtype in wanted]
    for mark, (tensor, (shape, dtype)) in enumerate(zip(tensors, wanted, strict=True), 1):
        assert tensor.shape == tuple(shape)
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        assert not tensor.any()
        assert tensor.numel() == 0 or tensor.data_ptr() % CACHE_LINE_BYTES == 0
        tensor.fill_(mark)
    assert all((tensor == mark).all() for mark, tensor in enumerate(tensors, 1))


@pytest.mark.parametrize("num_bytes", [MIB, REGION_BYTES - 1, 40 * MIB])
def test_a_tensor_outlives_its_region(num_bytes: int) -> None:
    first = dense_zeros([num_bytes], torch.int8).fill_(1)
    for _ in range(3):
        dense_zeros([REGION_BYTES - 1], torch.int8).fill_(2)
    gc.collect()
    assert (first == 1).all()


@pytest.mark.parametrize("num_bytes", [MIB, 40 * MIB])
def test_dense_ones_ask_for_huge_pages_and_sparse_ones_do_not(num_bytes: int) -> None:
    """A kernel without any refuses, and the tensor is there all the same."""
    has_huge_pages = Path("/sys/kernel/mm/transparent_hugepage").exists()
    assert ("hg" in flags_of(dense_zeros([num_bytes], torch.int8))) == has_huge_pages
    assert "hg" not in flags_of(sparse_zeros([num_bytes], torch.int8))


def flags_of(tensor: torch.Tensor) -> list[str]:
    """What the kernel notes about the mapping that a tensor lies in."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if name == "VmFlags:" and is_inside:
            return rest.split()
        if not name.endswith(":"):
            first, last = (int(edge, 16) for edge in name.split("-"))
            is_inside = first <= tensor.data_ptr() < last
    raise AssertionError("no such mapping")
