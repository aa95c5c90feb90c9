"""What the GPU benchmark measures on, and how: sizes, clocks, slabs and caches with something in them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from loraplex_kernels.lora import LoraSlab

MIXED_RANKS = (8, 16, 32, 64)


class Sizes(NamedTuple):
    """How much is measured; a rehearsal takes little."""

    shrink_by: int = 1  # of layers' widths
    copied_bytes: int = 2**30
    cold_bytes: int = 2**29  # written before each call: more than any cache
    repeats: int = 15
    streams: int = 64
    contexts: tuple[int, ...] = (1024, 8192)
    prompt: int = 2048


REHEARSAL = Sizes(
    shrink_by=32,
    copied_bytes=2**20,
    cold_bytes=2**16,
    repeats=2,
    streams=4,
    contexts=(40,),
    prompt=48,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is measured on, and how."""

    device: torch.device
    sizes: Sizes
    dtype: torch.dtype = torch.bfloat16

    def seconds(self, work: Callable[[], object]) -> float:
        """Median of a call that finds nothing in the caches, after one that compiles."""
        work()
        cold = torch.empty(self.sizes.cold_bytes, dtype=torch.uint8, device=self.device)
        times = []
        for _ in range(self.sizes.repeats):
            cold.zero_()
            times.append(self._timed(work))
        return statistics.median(times)

    def _timed(self, work: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            started_s = time.perf_counter()
            work()
            return time.perf_counter() - started_s
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def bandwidth(self) -> float:
        """Bytes a second that a plain copy reads and writes, the byte floor's measure."""
        source = torch.ones(self.sizes.copied_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.seconds(lambda: target.copy_(source))

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)


def slab_of(
    machine: Machine, in_features: int, widths: tuple[int, ...], ranks: tuple[int, ...]
) -> LoraSlab:
    starts = torch.tensor([0, *np.cumsum(ranks)[:-1]], dtype=torch.int32, device=machine.device)
    slab = LoraSlab.empty(
        in_features, widths, sum(ranks), starts, machine.dtype, max_rank=max(ranks)
    )
    slab.a.normal_().mul_(in_features**-0.5)
    for b in slab.b:
        b.normal_()
    each = torch.tensor(ranks, dtype=torch.int32, device=machine.device)
    slab.rank.copy_(each[:, None].expand_as(slab.rank))
    slab.scale.uniform_(0.5, 2.0)
    return slab


class Paged(NamedTuple):
    """A cache with something in it."""

    k: torch.Tensor
    v: torch.Tensor
    tables: torch.Tensor
    starts: torch.Tensor
    contexts: torch.Tensor


def paged(machine: Machine, lengths: list[tuple[int, int]], kv_heads: int, dim: int) -> Paged:
    """For (new tokens, context) of each sequence; blocks of nobody are NaN."""
    width = max(-(-context // 16) for _, context in lengths)
    num_blocks = len(lengths) * width
    shape = (num_blocks + 1, kv_heads, 16, dim)
    k, v = (torch.full(shape, float("nan"), device=machine.device) for _ in range(2))
    tables = torch.randperm(num_blocks)[: len(lengths) * width].view(len(lengths), width)
    for i, (_, context) in enumerate(lengths):
        mine = tables[i, : -(-context // 16)]
        for cache in (k, v):
            cache[mine] = torch.randn(len(mine), *shape[1:], device=machine.device)
    starts = np.cumsum([0, *(num_new for num_new, _ in lengths)])
    return Paged(
        k.to(machine.dtype),
        v.to(machine.dtype),
        tables.to(machine.device, torch.int32),
        torch.tensor(starts, dtype=torch.int32, device=machine.device),
        torch.tensor([c for _, c in lengths], dtype=torch.int32, device=machine.device),
    )
