"""Decode steps as graphs: captured once for each bucket of streams, replayed with new tables.

A graph's inputs and outputs keep their addresses. Rows beyond a step's streams compute on a block that
belongs to nobody, and their part of the chunk table is zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from loraplex_adapters.slot_extras import SlotExtras
from loraplex_engine.batch import NUM_TABLES, Batch, StepTables, arrays_of, batch_of, placed
from loraplex_engine.device import Device, Graph, LayerKv
from loraplex_engine.model.decoder import Decoder
from loraplex_engine.packing import Layout
from loraplex_kernels.gpu_configs import CHUNK_ROWS
from loraplex_kernels.lora import LoraSegments, Slab

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)  # streams
MAX_CHUNK = CHUNK_ROWS["few"]
TOKEN_IDS, POSITIONS, SLOTS, CONTEXTS = 0, 1, 2, 5  # in the order of arrays_of


class GraphLimits(NamedTuple):
    """What the steps to be replayed need at most."""

    max_num_seqs: int
    max_blocks: int  # of one sequence
    max_loras: int


@dataclass(frozen=True, slots=True)
class LoadedStep:
    """A graph whose inputs are in place; token ids that were not known may still be filled in."""

    batch: Batch
    graph: Graph
    num_rows: int

    def replay(self) -> torch.Tensor:
        """Logits of the step's rows; valid until the next replay of any graph."""
        self.graph.replay()
        return self.graph.output[: self.num_rows]


class FixedTables:
    """Tables of up to `size` streams at fixed addresses of the device, brought there in one copy."""

    def __init__(
        self, size: int, max_blocks: int, num_chunks: int | None, nowhere: int, device: Device
    ) -> None:
        """num_chunks: room in the chunk table, None: no LoRA; nowhere: a slot of KV of nobody."""
        self._device, self._nowhere = device, nowhere
        rows = np.zeros(size, np.int64)
        segments = None
        if num_chunks is not None:
            slot, start, length = (np.zeros(num_chunks, np.int32) for _ in range(3))
            order = np.zeros(size, np.int32)
            segments = LoraSegments(order, slot, start, length, MAX_CHUNK)
        blank = StepTables(
            token_ids=rows,
            positions=rows,
            slot_mapping=rows,
            block_tables=np.zeros((size, max_blocks), np.int32),
            query_start=np.zeros(size + 1, np.int32),
            context_lengths=np.zeros(size, np.int32),
            sample_rows=rows,
            lora=segments,
            sample_lora=None,  # the same rows: the same segments
        )
        self._layout = Layout.of(arrays_of(blank))
        num_bytes = self._layout.num_bytes
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=device.torch_device)
        parts = self._layout.tensors(self._buffer)
        if segments is not None:
            segments = _at(parts[NUM_TABLES:], segments)
        self.batch = batch_of(parts, segments, segments)

    def fill(self, tables: StepTables | None, block_size: int) -> None:
        """A step's rows, then rows of nobody: one token each, in the block of nobody, no adapter."""
        staging = self._device.staging(self._layout.num_bytes)
        places = self._layout.arrays(staging)
        token_ids, positions, slots, blocks, starts, contexts, samples, *chunks = places
        for place in (token_ids, positions, *chunks):
            place[...] = 0
        slots[...], blocks[:, 0] = self._nowhere, self._nowhere // block_size
        contexts[...] = 1
        starts[...], samples[...] = np.arange(len(starts)), np.arange(len(samples))
        if tables is not None:
            arrays = arrays_of(tables)[: len(places)]
            for i in (TOKEN_IDS, POSITIONS, SLOTS, CONTEXTS, *range(NUM_TABLES, len(arrays))):
                places[i][: len(arrays[i])] = arrays[i]
            num_rows, width = tables.block_tables.shape
            blocks[:num_rows, :width] = tables.block_tables
        self._buffer.copy_(staging, non_blocking=True)


class DecodeGraphs:
    """Graphs for steps in which every sequence computes one token and samples the next."""

    def __init__(
        self,
        decoder: Decoder,
        kv: list[LayerKv],
        slabs: Mapping[str, Slab],
        device: Device,
        limits: GraphLimits,
    ) -> None:
        """The arena's last block belongs to no sequence."""
        self._decoder, self._kv, self._slabs, self._device = decoder, kv, slabs, device
        self._block_size, self._limits = kv[0].k.shape[2], limits
        self._tables: dict[tuple[int, bool], FixedTables] = {}
        self._graphs: dict[tuple[int, bool], Graph] = {}
        most = min(limits.max_num_seqs, BUCKETS[-1])
        self.sizes = (*(size for size in BUCKETS if size < most), most)

    def capture(self) -> None:
        """All graphs, the largest first: the others fit into its memory."""
        kinds = (False, True) if self._limits.max_loras else (False,)
        for size in reversed(self.sizes):
            for has_lora in kinds:
                self._capture(size, has_lora)

    def load(self, tables: StepTables, extras: Mapping[int, SlotExtras]) -> LoadedStep | None:
        """Bring a step's tables to the graph that can compute it; None if no graph can."""
        num_rows, width = tables.block_tables.shape
        lora = tables.lora
        if not len(tables.token_ids) == num_rows == len(tables.sample_rows):
            return None
        if num_rows > self.sizes[-1] or width > self._limits.max_blocks:
            return None
        if lora is not None and not extras.keys().isdisjoint(lora.chunk_slot.tolist()):
            return None  # what an adapter has beside LoRA is computed by rows
        size = next(size for size in self.sizes if num_rows <= size)
        key = (size, lora is not None)
        fixed = self._tables[key]
        fixed.fill(tables, self._block_size)
        return LoadedStep(fixed.batch, self._graphs[key], num_rows)

    def _capture(self, size: int, has_lora: bool) -> None:
        limits, nowhere = self._limits, (len(self._kv[0].k) - 1) * self._block_size
        # Each adapter has at most one chunk that is not full
        num_chunks = min(size, limits.max_loras + size // MAX_CHUNK)
        fixed = FixedTables(
            size, limits.max_blocks, num_chunks if has_lora else None, nowhere, self._device
        )
        fixed.fill(None, self._block_size)

        def compute() -> torch.Tensor:
            logits = self._decoder.forward(fixed.batch, self._kv, self._slabs, {})
            assert logits is not None, "every row samples"
            return logits.known

        self._tables[size, has_lora] = fixed
        self._graphs[size, has_lora] = self._device.capture(compute)


def _at(parts: list[torch.Tensor], segments: LoraSegments) -> LoraSegments:
    """Segments of a graph: a GPU reads the tensors, a CPU the same memory."""
    if parts[0].device.type == "cpu":
        order, slot, start, length = (part.numpy() for part in parts)
        segments = LoraSegments(order, slot, start, length, segments.max_chunk)
    return placed(segments, parts)
