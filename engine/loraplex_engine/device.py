"""The machine below the runner: memory for KV, and copies of blocks between two arenas of it."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from loraplex_engine.config import DeviceKind
from loraplex_engine.errors import CannotStart

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


class LayerKv(NamedTuple):
    """One layer's paged keys and values: [num_blocks, num_kv_heads, block_size, head_dim]."""

    k: torch.Tensor
    v: torch.Tensor


class KvShape(NamedTuple):
    """The shape of all layers' KV, but for the number of blocks."""

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Of one block in all layers, keys and values."""
        elements = self.num_kv_heads * self.block_size * self.head_dim
        return 2 * self.num_layers * elements * self.dtype.itemsize


class Memory(NamedTuple):
    total_bytes: int
    available_bytes: int


class Device:
    """A CPU or one CUDA device."""

    def __init__(self, kind: DeviceKind = "auto") -> None:
        has_cuda = torch.cuda.is_available()
        if kind == "cuda" and not has_cuda:
            raise CannotStart("device is cuda, but torch sees no CUDA device")
        is_cuda = has_cuda if kind == "auto" else kind == "cuda"
        self.torch_device = torch.device("cuda" if is_cuda else "cpu")

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch_device) if self.is_cuda else "cpu"

    def memory(self) -> Memory:
        if self.is_cuda:
            available, total = torch.cuda.mem_get_info(self.torch_device)
            return Memory(total, available)
        return _host_memory()

    def host_memory(self) -> Memory:
        return _host_memory()

    def allocate_kv(self, shape: KvShape, num_blocks: int) -> list[LayerKv]:
        """An arena of blocks on the device; its contents are undefined."""
        return _arena(shape, num_blocks, self.torch_device)

    def allocate_host_kv(self, shape: KvShape, num_blocks: int) -> list[LayerKv]:
        """An arena of blocks in host memory, pinned where that makes copies asynchronous."""
        arena = _arena(shape, num_blocks, torch.device("cpu"))
        if not self.is_cuda:
            return arena
        return [LayerKv(kv.k.pin_memory(), kv.v.pin_memory()) for kv in arena]

    def copy_blocks(
        self,
        source: Sequence[LayerKv],
        target: Sequence[LayerKv],
        blocks: Sequence[tuple[int, int]],
    ) -> torch.cuda.Event | None:
        """Copy (source, target) blocks of all layers, targets all different.

        On CUDA copies and steps take place in the order in which they are asked for, so a block may
        be given away at once; whoever else looks at one waits for the event.
        """
        from_blocks, to_blocks = [block for block, _ in blocks], [block for _, block in blocks]
        for from_layer, to_layer in zip(source, target, strict=True):
            for from_kv, to_kv in zip(from_layer, to_layer, strict=True):
                if not self.is_cuda:
                    to_kv[to_blocks] = from_kv[from_blocks]
                    continue
                for from_block, to_block in blocks:
                    to_kv[to_block].copy_(from_kv[from_block], non_blocking=True)
        if not self.is_cuda:
            return None
        done: torch.cuda.Event = torch.cuda.current_stream(self.torch_device).record_event()
        return done


def return_freed_memory() -> None:
    """To the system: glibc keeps what is freed between tensors that stay."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _arena(shape: KvShape, num_blocks: int, device: torch.device) -> list[LayerKv]:
    size = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)

    def cache() -> torch.Tensor:
        return torch.empty(size, dtype=shape.dtype, device=device)

    return [LayerKv(cache(), cache()) for _ in range(shape.num_layers)]


def _host_memory() -> Memory:
    """Of the machine, or of the container if that has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = total // 2
    if MEMINFO.exists():
        fields = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = (_cgroup_bytes(name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        total, available = min(total, limit), min(available, limit - used)
    return Memory(total, available)


def _cgroup_bytes(name: str) -> int | None:
    path = CGROUP / name
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text.isdigit() else None
