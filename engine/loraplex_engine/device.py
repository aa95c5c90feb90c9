"""The machine below the runner: memory for KV, and copies of blocks between two arenas of it."""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from loraplex_engine.config import DeviceKind
from loraplex_engine.errors import CannotStart
from loraplex_kernels.memory import dense_zeros, sparse_zeros

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


class Mark(Protocol):
    """A point in the work of a device; torch.cuda.Event is one."""

    def query(self) -> bool:
        """Whether the device is past it."""
        ...

    def synchronize(self) -> None: ...


class Graph(Protocol):
    """Work of a device that was recorded once: the same kernels on the same memory."""

    @property
    def output(self) -> torch.Tensor:
        """What was computed; overwritten by each replay."""
        ...

    def replay(self) -> None: ...


class CudaGraph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    output: torch.Tensor

    def replay(self) -> None:
        self.graph.replay()


class Device:
    """A CPU or one CUDA device."""

    def __init__(self, kind: DeviceKind = "auto") -> None:
        has_cuda = torch.cuda.is_available()
        if kind == "cuda" and not has_cuda:
            raise CannotStart("device is cuda, but torch sees no CUDA device")
        is_cuda = has_cuda if kind == "auto" else kind == "cuda"
        self.torch_device = torch.device("cuda" if is_cuda else "cpu")
        self._copies = _stream() if is_cuda else None  # of blocks, beside the steps
        self._graph_memory = torch.cuda.graph_pool_handle() if is_cuda else None

    @property
    def is_cuda(self) -> bool:
        return self.torch_device.type == "cuda"

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch_device) if self.is_cuda else "cpu"

    @property
    def has_own_memory(self) -> bool:
        """Whether tables must be brought to it."""
        return self.is_cuda

    @property
    def has_graphs(self) -> bool:
        return self.is_cuda

    @property
    def compiles_at_launch(self) -> bool:
        """Whether a kernel is compiled when it is first launched, and not by warm_up."""
        return self.is_cuda

    @property
    def has_long_chunks(self) -> bool:
        """Whether many tokens of one adapter are read in longer chunks: once for each."""
        return self.is_cuda

    def memory(self) -> Memory:
        if self.is_cuda:
            available, total = torch.cuda.mem_get_info(self.torch_device)
            return Memory(total, available)
        return _host_memory()

    def host_memory(self) -> Memory:
        return _host_memory()

    def allocate_kv(self, shape: KvShape, num_blocks: int) -> list[LayerKv]:
        """An arena of blocks on the device; its contents are undefined."""
        if not self.is_cuda:
            return _arena(shape, num_blocks, dense_zeros)
        return _arena(shape, num_blocks, partial(torch.empty, device=self.torch_device))

    def allocate_host_kv(self, shape: KvShape, num_blocks: int) -> list[LayerKv]:
        """An arena of blocks in host memory, pinned where that makes copies asynchronous."""
        if not self.is_cuda:
            return _arena(shape, num_blocks, sparse_zeros)
        return _arena(shape, num_blocks, partial(torch.empty, pin_memory=True))

    def staging(self, num_bytes: int) -> torch.Tensor:
        """Host bytes to fill and to copy from once; their contents are undefined."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self.is_cuda)

    def capture(self, compute: Callable[[], torch.Tensor]) -> Graph:
        """Record what `compute` launches; it must neither wait for the device nor read from it.

        All graphs share one memory: what one of them left there, the next replay may overwrite.
        """
        assert self.has_graphs
        aside = _stream()
        steps = torch.cuda.current_stream()
        aside.wait_stream(steps)
        with torch.cuda.stream(aside):
            compute()  # compiles kernels and lets libraries take their memory
        steps.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._graph_memory, capture_error_mode="thread_local"):
            output = compute()
        return CudaGraph(graph, output)

    def copy_blocks(
        self,
        source: Sequence[LayerKv],
        target: Sequence[LayerKv],
        blocks: Sequence[tuple[int, int]],
    ) -> Mark | None:
        """Copy (source, target) blocks of all layers, targets all different.

        On CUDA copies begin when the steps launched so far are done, one after the other, beside the
        steps launched later: whoever touches one of the blocks waits for the mark. None: it is done.
        """
        if self._copies is None:
            from_blocks, to_blocks = [block for block, _ in blocks], [block for _, block in blocks]
            for from_layer, to_layer in zip(source, target, strict=True):
                for from_kv, to_kv in zip(from_layer, to_layer, strict=True):
                    to_kv[to_blocks] = from_kv[from_blocks]
            return None
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            for from_layer, to_layer in zip(source, target, strict=True):
                for from_kv, to_kv in zip(from_layer, to_layer, strict=True):
                    for from_block, to_block in blocks:
                        to_kv[to_block].copy_(from_kv[from_block], non_blocking=True)
            done: torch.cuda.Event = self._copies.record_event()
        return done

    def wait_for(self, mark: Mark) -> None:
        """Hold the steps launched from now on until the device is past a mark; the caller goes on."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream().wait_event(mark)


def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives it no types


def return_freed_memory() -> None:
    """To the system: glibc keeps what is freed between tensors that stay."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _arena(shape: KvShape, num_blocks: int, allocate: Callable[..., torch.Tensor]) -> list[LayerKv]:
    size = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)

    def cache() -> torch.Tensor:
        return allocate(size, dtype=shape.dtype)

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
