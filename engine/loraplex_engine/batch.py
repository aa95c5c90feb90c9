"""From a plan to flat tensors: one row per token, sequences one after the other in the plan's order."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from loraplex_engine.scheduling.policy import StepPlan
from loraplex_kernels.lora import LoraSegments, build_segments


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


def build_batch(
    plan: StepPlan, block_size: int, slot_of: Callable[[str], int], device: torch.device
) -> Batch:
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
    sample_rows = query_start[1:][samples].astype(np.int64) - 1

    def tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return Batch(
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        slot_mapping=tensor(blocks * block_size + positions % block_size),
        block_tables=tensor(tables),
        query_start=tensor(query_start),
        context_lengths=tensor(starts + counts),
        sample_rows=tensor(sample_rows),
        lora=build_segments(slots[row_of]),
        sample_lora=build_segments(slots[samples]),
    )
