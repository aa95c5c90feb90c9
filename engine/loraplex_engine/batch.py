"""From a plan to flat tables: one row per token, sequences one after the other in the plan's order."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from loraplex_engine.device import Device
from loraplex_engine.packing import Layout
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_kernels.attention import Companies, build_companies
from loraplex_kernels.gpu_configs import CHUNK_ROWS, token_bucket
from loraplex_kernels.lora import Int32Array, LoraSegments, build_segments

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepTables:
    """The inputs of one forward pass, in host memory; as in Batch."""

    token_ids: Int64Array
    positions: Int64Array
    slot_mapping: Int64Array
    block_tables: Int32Array
    query_start: Int32Array
    context_lengths: Int32Array
    sample_rows: Int64Array
    lora: LoraSegments | None
    sample_lora: LoraSegments | None
    companies: Companies | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of one forward pass."""

    token_ids: torch.Tensor  # int64 [num_tokens]; 0 where a step in flight has yet to sample it
    positions: torch.Tensor  # int64 [num_tokens]
    slot_mapping: torch.Tensor  # int64 [num_tokens]: block * block_size + offset
    block_tables: torch.Tensor  # int32 [num_seqs, max_blocks]
    query_start: torch.Tensor  # int32 [num_seqs + 1]
    context_lengths: torch.Tensor  # int32 [num_seqs]
    sample_rows: torch.Tensor  # int64 [num_samples]: rows whose logits are wanted
    lora: LoraSegments | None  # of all rows
    sample_lora: LoraSegments | None  # of sample_rows
    companies: Companies | None = None  # of sequences that begin alike


def build_batch(
    plan: StepPlan,
    block_size: int,
    slot_of: Callable[[str], int],
    *,
    has_long_chunks: bool = False,
    finds_companies: bool = False,
) -> StepTables:
    items = plan.items
    counts = np.array([item.num_tokens for item in items], np.int32)
    starts = np.array([item.start for item in items], np.int32)
    query_start = np.zeros(len(items) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    token_ids = np.zeros(query_start[-1], np.int64)
    tables = np.zeros((len(items), max(len(item.seq.block_table) for item in items)), np.int32)
    slots = np.full(len(items), -1, np.int32)
    for i, (seq, start, num_tokens, _) in enumerate(items):
        known = seq.known_ids(start, start + num_tokens)
        token_ids[query_start[i] : query_start[i] + len(known)] = known
        tables[i, : len(seq.block_table)] = seq.block_table
        if seq.adapter is not None:
            slots[i] = slot_of(seq.adapter)
    row_of = np.repeat(np.arange(len(items)), counts)
    positions = np.arange(query_start[-1]) + (starts - query_start[:-1])[row_of]
    blocks = tables[row_of, positions // block_size].astype(np.int64)
    samples = np.array([item.samples for item in items])
    # A GPU reads an adapter once a chunk
    max_chunk = CHUNK_ROWS[token_bucket(len(token_ids)) if has_long_chunks else "few"]
    context_lengths = starts + counts
    companies = None
    if finds_companies:
        companies = build_companies(tables, query_start, context_lengths, block_size)
    return StepTables(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        block_tables=tables,
        query_start=query_start,
        context_lengths=context_lengths,
        sample_rows=query_start[1:][samples].astype(np.int64) - 1,
        lora=build_segments(slots[row_of], max_chunk),
        sample_lora=build_segments(slots[samples], max_chunk),
        companies=companies,
    )


def move(tables: StepTables, device: Device) -> Batch:
    """On the device: in one copy, or where they lie if that is the host's memory."""
    arrays = arrays_of(tables)
    if not device.has_own_memory:
        parts = [torch.from_numpy(array) for array in arrays[:NUM_TABLES]]
        return batch_of(parts, tables.lora, tables.sample_lora, tables.companies)
    layout = Layout.of(arrays)
    staging = device.staging(layout.num_bytes)
    for array, place in zip(arrays, layout.arrays(staging), strict=True):
        place[...] = array
    parts = layout.tensors(staging.to(device.torch_device, non_blocking=True))
    lora, sample_lora = tables.lora, tables.sample_lora
    if lora is not None:
        lora = placed(lora, parts[NUM_TABLES : NUM_TABLES + 4])
    if sample_lora is not None:
        sample_lora = placed(sample_lora, parts[-4:])
    return batch_of(parts, lora, sample_lora)


NUM_TABLES = 7  # without those of LoRA, which are four for each of two


def arrays_of(tables: StepTables) -> list[npt.NDArray[np.generic]]:
    """All that a step brings to the device, in Batch's order."""
    arrays: list[npt.NDArray[np.generic]] = [
        tables.token_ids,
        tables.positions,
        tables.slot_mapping,
        tables.block_tables,
        tables.query_start,
        tables.context_lengths,
        tables.sample_rows,
    ]
    for lora in (tables.lora, tables.sample_lora):
        if lora is not None:
            arrays += [lora.permutation, lora.chunk_slot, lora.chunk_start, lora.chunk_length]
    return arrays


def batch_of(
    parts: list[torch.Tensor],
    lora: LoraSegments | None,
    sample_lora: LoraSegments | None,
    companies: Companies | None = None,
) -> Batch:
    """From tensors in the order of arrays_of."""
    token_ids, positions, slots, blocks, starts, contexts, samples = parts[:NUM_TABLES]
    return Batch(
        token_ids, positions, slots, blocks, starts, contexts, samples, lora, sample_lora, companies
    )


def placed(lora: LoraSegments, parts: list[torch.Tensor]) -> LoraSegments:
    """The same segments, and where the device finds them."""
    return LoraSegments(
        lora.permutation,
        lora.chunk_slot,
        lora.chunk_start,
        lora.chunk_length,
        lora.max_chunk,
        tuple(parts),
    )
