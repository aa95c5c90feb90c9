"""Zeros on the CPU that take memory when they are written, by the page: of 4 KiB, or huge ones of 2 MiB.

A page of 4 KiB must be looked up 512 times as often as a huge one, and in a virtual machine each lookup
that misses reads memory up to 24 times. Linux, in its usual setting, lends huge pages to those who ask.
"""

import contextlib
import math
import mmap
import threading
from collections.abc import Sequence

import torch

REGION_BYTES = 32 << 20  # of huge pages, shared by smaller tensors: their ends share pages, too
CACHE_LINE_BYTES = 64

_lock = threading.Lock()
_region = torch.empty(0, dtype=torch.uint8)  # what is left of it


def sparse_zeros(
    shape: Sequence[int], dtype: torch.dtype, *, is_huge: bool = False
) -> torch.Tensor:
    """For what is written here and there: pages in which nobody has written take no memory."""
    num_bytes = math.prod(shape) * dtype.itemsize
    return _shaped(_mapped(num_bytes, is_huge=is_huge), shape, dtype)


def dense_zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """In huge pages, for what is read from end to end: packed weights and the KV cache.

    Small tensors lie together in regions, and a region is given back when all of its tensors are gone.
    """
    global _region
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes >= REGION_BYTES:
        return _shaped(_mapped(num_bytes, is_huge=True), shape, dtype)
    room = -(-num_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    with _lock:
        if len(_region) < room:
            _region = _mapped(REGION_BYTES, is_huge=True)
        memory, _region = _region[:num_bytes], _region[room:]
    return _shaped(memory, shape, dtype)


def _shaped(memory: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return memory.view(dtype).view(tuple(shape))


def _mapped(num_bytes: int, *, is_huge: bool) -> torch.Tensor:
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if is_huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them: it is a wish, no need
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
