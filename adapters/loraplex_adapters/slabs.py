"""The device side: slabs at fixed addresses, written in the background, published between steps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from loraplex_adapters.layout import ProjectionSpec, row_elements
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.packed_memory import PackedMemory
from loraplex_adapters.slot_extras import SlotExtras, place_extras
from loraplex_kernels.lora import LoraSlab, PackedSlab, Slab


class PlacedAdapter(NamedTuple):
    """A version whose factors lie in their rows, and what it has outside the slabs."""

    weights: AdapterWeights
    extras: SlotExtras | None
    starts: Mapping[str, int]  # by module, of those in packed memory


class DeviceSlabs:
    """All slabs of a model. Their ranks, scales and (if packed) starts are windows of flat tensors,
    so that publishing a slot is three writes, however many layers there are."""

    def __init__(
        self,
        projections: Sequence[ProjectionSpec],
        *,
        num_slots: int,
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device,
        max_rank: int = 64,
    ) -> None:
        self.device = device
        self._projections = tuple(projections)
        self.num_bytes = num_rows * row_elements(projections) * dtype.itemsize
        served = [each for each in projections if PackedMemory.serves(each, dtype, device)]
        self._plain = [each for each in projections if each not in served]
        self._packed = PackedMemory(served, num_rows)
        sizes = [_aligned(num_slots * len(projection.slices)) for projection in projections]
        self._row_start = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self._starts = torch.zeros(sum(sizes), dtype=torch.int64)
        self._ranks = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._scales = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        self._offsets: list[int] = []  # in the flat tensors, of slot 0 of each slice
        self._strides: list[int] = []  # from one slot to the next
        self.slabs: dict[str, Slab] = {}
        self.extras: dict[int, SlotExtras] = {}  # of the published slots that have any
        position = 0
        for projection, size in zip(projections, sizes, strict=True):
            width = len(projection.slices)
            window = slice(position, position + num_slots * width)
            self._offsets += range(position, position + width)
            self._strides += [width] * width
            position += size
            starts, rank, scale = (
                flat[window].view(num_slots, width)
                for flat in (self._starts, self._ranks, self._scales)
            )
            shape = projection.in_features, projection.slice_widths
            if projection in served:
                slab: Slab = PackedSlab(*shape, self._packed.elements, starts, rank, scale)
            else:
                empty = LoraSlab.empty(*shape, num_rows, self._row_start, dtype, max_rank)
                slab = replace(empty, rank=rank, scale=scale)
            self.slabs[projection.name] = slab

    def fence(self) -> torch.cuda.Event | None:
        """A mark behind all steps launched so far: what they read may be overwritten after it."""
        if self.device.type != "cuda":
            return None
        fence = torch.cuda.Event()  # type: ignore[no-untyped-call]
        fence.record()
        return fence

    def write(
        self, weights: AdapterWeights, row_start: int, fence: torch.cuda.Event | None
    ) -> PlacedAdapter:
        """Copy the factors into rows that no published slot uses, and return when they are there.

        Any thread may do it; the device's own stream of steps is not held up.
        """
        if fence is None:
            return self._copy(weights, row_start)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_event(fence)
        with torch.cuda.stream(stream):
            placed = self._copy(weights, row_start)
        stream.synchronize()
        return placed

    def publish(self, slot: int, row_start: int, placed: PlacedAdapter) -> None:
        """From the next step on, tokens of this slot use these rows."""
        weights, extras, starts = placed
        if extras is not None:
            self.extras[slot] = extras
        pieces = [piece for projection in self._projections for piece in projection.slices]
        found = [weights.modules.get(piece.module) for piece in pieces]
        offsets = zip(self._offsets, self._strides, strict=True)
        index = torch.tensor([offset + slot * stride for offset, stride in offsets])
        index = self._moved(index)
        ranks = torch.tensor([f.rank if f else 0 for f in found], dtype=torch.int32)
        scales = torch.tensor([f.scale if f else 0.0 for f in found], dtype=torch.float32)
        self._ranks[index] = self._moved(ranks)
        self._scales[index] = self._moved(scales)
        self._row_start[slot] = row_start
        if starts:
            self._starts[index] = torch.tensor([starts.get(piece.module, 0) for piece in pieces])

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the device, without waiting for the step in flight."""
        if self.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def forget(self, slot: int) -> None:
        """The slot's version is gone, and what it held outside the slabs with it."""
        self.extras.pop(slot, None)

    def _copy(self, weights: AdapterWeights, row_start: int) -> PlacedAdapter:
        starts, extras = self._packed.put(weights, row_start), None
        self._put(weights, row_start)
        if weights.extras:
            extras = place_extras(weights.extras, self._projections, self.device)
        return PlacedAdapter(weights, extras, starts)

    def _put(self, weights: AdapterWeights, row_start: int) -> None:
        for projection in self._plain:
            slab = self.slabs[projection.name]
            assert isinstance(slab, LoraSlab)
            for i, piece in enumerate(projection.slices):
                factors = weights.modules.get(piece.module)
                if factors is not None:
                    slab.put(i, row_start, factors.a, factors.b)


def _aligned(num_elements: int) -> int:
    """A window of 4-byte elements that starts at 16 bytes needs no kernel variant of its own."""
    return -(-num_elements // 4) * 4
