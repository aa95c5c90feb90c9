"""The Triton kernels on slabs, caches and rows of more than 2**31 elements; run by test_triton.py as
triton_interpreted.py is. The memory is a file of nothing but holes: what is not touched takes no place.

Each test is run by kernels that count in 32 bits too, and must fail.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.kernels.mutants import NARROW, mutant
from tests.kernels.triton_interpreted import SMALL

from loraplex_kernels.attention import _decode as decode_triton
from loraplex_kernels.attention import _prefill as prefill_triton
from loraplex_kernels.attention import reference as attention_reference
from loraplex_kernels.gpu_configs import AttentionConfig
from loraplex_kernels.kv_store import _triton as kv_triton
from loraplex_kernels.kv_store import reference as kv_reference
from loraplex_kernels.lora import LoraSlab, build_segments
from loraplex_kernels.lora import _triton as lora_triton
from loraplex_kernels.lora import reference as lora_reference
from loraplex_kernels.sampling import _triton as sampling_triton
from loraplex_kernels.testing import assert_close

FAR = 2**31  # elements: the first place that an int32 cannot name
APART = FAR // 2  # elements from one row to the next: the third is far
DTYPE = torch.float16
int32 = partial(torch.tensor, dtype=torch.int32)
Memory = Callable[[int], torch.Tensor]


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    """Zeros, so many elements; as many as FAR lie before them, where a place that overflowed is."""

    def zeros(num_elements: int) -> torch.Tensor:
        file, size = tmp_path / "holes", FAR + num_elements
        with file.open("wb") as holes:
            holes.truncate(size * DTYPE.itemsize)
        whole = torch.from_file(str(file), shared=True, size=size, dtype=DTYPE)
        file.unlink()
        return whole[FAR:]

    return zeros


def rows_apart(memory: Memory, *shape: int) -> torch.Tensor:
    """Random rows of which the third begins FAR elements behind the first."""
    sizes = torch.empty(shape).stride()[1:]
    rows = memory((shape[0] - 1) * APART + int(np.prod(shape[1:])))
    placed = rows.as_strided(shape, (APART, *sizes))
    return placed.copy_(torch.randn(shape))


def check_lora(memory: Memory, kernels: ModuleType) -> None:
    """Rows of A and B at both ends of the arena, and of x and y."""
    width, rank = 64, 4
    far_row = FAR // width
    a, b = (memory((far_row + rank) * width).view(-1, width) for _ in range(2))
    starts = int32([0, far_row])
    for start in starts.tolist():
        a[start : start + rank] = torch.randn(rank, width) / 8
        b[start : start + rank] = torch.randn(rank, width)
    ranks = torch.full((2, 1), rank, dtype=torch.int32)
    slab = LoraSlab((width,), a[None], (b,), starts, ranks, torch.ones(2, 1))
    x, y = rows_apart(memory, 3, width), rows_apart(memory, 3, width)
    slots = np.array([1, -1, 0], np.int32)
    expected = lora_reference.apply_lora(y, x, slab, torch.from_numpy(slots))
    segments = build_segments(slots)
    assert segments is not None
    kernels.apply_lora(y, x, slab, segments, config=SMALL)
    assert_close(y, expected, DTYPE)


HEADS, KV_HEADS, PAGE, DIM = 4, 2, 16, 32
FAR_BLOCK = FAR // (KV_HEADS * PAGE * DIM)


def far_caches(memory: Memory) -> list[torch.Tensor]:
    return [
        memory((FAR_BLOCK + 2) * KV_HEADS * PAGE * DIM).view(-1, KV_HEADS, PAGE, DIM)
        for _ in range(2)
    ]


def check_attention(memory: Memory, decode: ModuleType, prefill: ModuleType) -> None:
    """Three tokens of a prompt, then each as a decode of its own; blocks at both ends of the pool."""
    caches, blocks = far_caches(memory), [FAR_BLOCK, 1, FAR_BLOCK + 1]
    for cache in caches:
        cache[blocks] = torch.randn(3, KV_HEADS, PAGE, DIM).to(DTYPE)
    q = rows_apart(memory, 3, HEADS, DIM)
    last, config = (0.2, None, None), AttentionConfig(16, 16, 4, 1)
    prompt = (int32([blocks]), int32([0, 3]), int32([40]))
    expected = attention_reference.paged_attention(q.float(), *caches, *prompt, *last)
    found = prefill.prefill_attention(q, *caches, *prompt, *last, config)
    assert_close(found, expected, DTYPE)
    tables, contexts = int32([[block] for block in blocks]), int32([16, 3, 9])
    decodes = (tables, int32([0, 1, 2, 3]), contexts)
    expected = attention_reference.paged_attention(q.float(), *caches, *decodes, *last)
    found = decode.decode_attention(q, *caches, tables, contexts, *last, config)
    assert_close(found, expected, DTYPE)


def check_rotary(memory: Memory, kernels: ModuleType) -> None:
    """Queries turned where they lie, keys and values written to both ends of the pool."""
    slots = torch.tensor([FAR_BLOCK * PAGE + 5, 7, (FAR_BLOCK + 2) * PAGE - 1])
    positions, angle = torch.tensor([3, 1, 2]), torch.rand(4, DIM // 2)
    results = []
    qkv = [torch.randn(3, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    for function in (kernels.rotary_write_kv, kv_reference.rotary_write_kv):
        q, k, v = (rows_apart(memory, *x.shape).copy_(x) for x in qkv)
        caches = far_caches(memory)
        function(q, k, v, angle.cos(), angle.sin(), positions, *caches, slots)
        written = [c[slots // PAGE, :, slots % PAGE].clone() for c in caches]
        results.append((q.clone(), *written))
    for mine, theirs in zip(*results, strict=True):
        assert_close(mine, theirs, DTYPE)


def check_most_likely(memory: Memory, kernels: ModuleType) -> None:
    logits = rows_apart(memory, 3, 50)
    found = kernels.most_likely(logits, block=64)
    assert found.tolist() == logits.argmax(-1).tolist()


def test_lora_in_float16(memory: Memory, tmp_path: Path) -> None:
    check_lora(memory, lora_triton)
    row = ("row_start + slot).to(tl.int64)", "row_start + slot)")
    token = ("other=0).to(tl.int64)", "other=0)")
    for wrong in (NARROW, row, token):
        with pytest.raises(AssertionError, match="float16"):
            check_lora(memory, mutant(lora_triton, tmp_path, wrong))


def test_attention_in_float16(memory: Memory, tmp_path: Path) -> None:
    check_attention(memory, decode_triton, prefill_triton)
    prefill = mutant(prefill_triton, tmp_path, NARROW)
    decode = mutant(decode_triton, tmp_path, NARROW, (prefill_triton.__name__, prefill.__name__))
    for wrong in ((decode_triton, prefill), (decode, prefill_triton)):
        with pytest.raises(AssertionError, match="float16"):
            check_attention(memory, *wrong)


def test_rotary_in_float16(memory: Memory, tmp_path: Path) -> None:
    check_rotary(memory, kv_triton)
    slot = ("slots + token)", "slots + token).to(tl.int32)")
    head = ("program_id(1).to(tl.int64)", "program_id(1)")
    for changes in ([NARROW], [slot, head]):
        with pytest.raises(AssertionError, match="float16"):
            check_rotary(memory, mutant(kv_triton, tmp_path, *changes))


def test_most_likely_in_float16(memory: Memory, tmp_path: Path) -> None:
    check_most_likely(memory, sampling_triton)
    with pytest.raises(AssertionError):
        check_most_likely(memory, mutant(sampling_triton, tmp_path, NARROW))
