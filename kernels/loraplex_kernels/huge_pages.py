"""Memory in huge pages, for what a step reads from end to end: packed weights and the KV cache.

A page of 4 KiB must be looked up 512 times as often as one of 2 MiB, and in a virtual machine each lookup
that misses reads memory up to 24 times. Linux, in its usual setting, lends huge pages to those who ask.
"""

import contextlib
import math
import mmap
import threading
from collections.abc import Sequence

import torch

REGION_BYTES = 32 << 20  # shared by smaller tensors, so that their ends share pages, too
CACHE_LINE_BYTES = 64

_lock = threading.Lock()
_region = torch.empty(0, dtype=torch.uint8)  # what is left of it


def zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU.

    Small tensors lie together in regions, and a region is given back when all of its tensors are gone: for
    what stays as long as the model.
    """
    global _region
    num_bytes = math.prod(shape) * dtype.itemsize
    room = -(-num_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    if num_bytes >= REGION_BYTES:
        memory = _map(room)
    else:
        with _lock:
            if len(_region) < room:
                _region = _map(REGION_BYTES)
            memory, _region = _region[:room], _region[room:]
    return memory[:num_bytes].view(dtype).view(tuple(shape))


def _map(num_bytes: int) -> torch.Tensor:
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them: it is a wish, no need
            pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)
