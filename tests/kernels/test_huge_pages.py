"""Memory in huge pages: its tensors are apart, and the system was asked for the pages."""

import gc
import mmap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loraplex_kernels import huge_pages

MIB = 1 << 20
DTYPES = (torch.bfloat16, torch.float32, torch.int8)
SHAPES = st.lists(st.integers(0, 70), min_size=1, max_size=3)


@given(st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), min_size=2, max_size=8))
def test_tensors_are_zeros_of_their_shape_and_apart(
    wanted: list[tuple[list[int], torch.dtype]],
) -> None:
    tensors = [huge_pages.zeros(shape, dtype) for shape, dtype in wanted]
    for mark, (tensor, (shape, dtype)) in enumerate(zip(tensors, wanted, strict=True), 1):
        assert tensor.shape == tuple(shape)
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
        assert not tensor.any()
        assert tensor.numel() == 0 or tensor.data_ptr() % huge_pages.CACHE_LINE_BYTES == 0
        tensor.fill_(mark)
    assert all((tensor == mark).all() for mark, tensor in enumerate(tensors, 1))


@pytest.mark.parametrize("num_bytes", [MIB, huge_pages.REGION_BYTES - 1, 40 * MIB])
def test_a_tensor_outlives_its_region(num_bytes: int) -> None:
    first = huge_pages.zeros([num_bytes], torch.int8).fill_(1)
    for _ in range(3):
        huge_pages.zeros([huge_pages.REGION_BYTES - 1], torch.int8).fill_(2)
    gc.collect()
    assert (first == 1).all()


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has none to lend"
)
@pytest.mark.parametrize("num_bytes", [MIB, 40 * MIB])
def test_the_system_is_asked_for_huge_pages(num_bytes: int) -> None:
    assert hasattr(mmap, "MADV_HUGEPAGE")
    tensor = huge_pages.zeros([num_bytes], torch.int8)
    plain = torch.zeros(num_bytes, dtype=torch.int8)
    assert "hg" in flags_of(tensor)
    assert "hg" not in flags_of(plain)


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
