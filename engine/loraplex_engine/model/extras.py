"""What some adapters do beside LoRA, by torch on the rows of their slots; other rows are untouched.

Each row's result depends on that row alone, bit for bit, as everywhere in bfloat16 on the CPU.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from loraplex_adapters.extras import EmbeddingExtras
from loraplex_adapters.slot_extras import ColumnExtras, SlotExtras
from loraplex_kernels.linear import linear
from loraplex_kernels.lora import LoraSegments


class RowExtras(NamedTuple):
    """The rows of a step that belong to one slot with extras."""

    rows: torch.Tensor  # int64
    extras: SlotExtras


def rows_with_extras(
    segments: LoraSegments, extras: Mapping[int, SlotExtras], device: torch.device
) -> tuple[RowExtras, ...]:
    if not extras:
        return ()
    found = []
    for slot in extras.keys() & set(segments.chunk_slot.tolist()):
        chunks = np.flatnonzero(segments.chunk_slot == slot)  # one after the other
        start = segments.chunk_start[chunks[0]]
        stop = segments.chunk_start[chunks[-1]] + segments.chunk_length[chunks[-1]]
        rows = segments.permutation[start:stop].astype(np.int64)
        found.append(RowExtras(torch.from_numpy(rows).to(device), extras[slot]))
    return tuple(found)


def replace_columns(
    y: torch.Tensor,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    name: str,
    own: Collection[RowExtras],
) -> None:
    """Before LoRA: products with a slot's own weights, in place of the base model's."""
    for rows, extras in own:
        for columns in extras.columns.get(name, ()):
            if columns.weight is not None:
                product = linear(x[rows], columns.weight)
                if bias is not None:
                    product += bias[columns.start : columns.stop]
                y[rows, columns.start : columns.stop] = product
            if columns.tokens is not None:
                ids, weight = columns.tokens
                y[rows[:, None], ids] = linear(x[rows], weight)


def finish_columns(y: torch.Tensor, name: str, own: Collection[RowExtras]) -> None:
    """After LoRA: gain and shift."""
    for rows, extras in own:
        for columns in extras.columns.get(name, ()):
            if columns.gain is not None or columns.shift is not None:
                part = y[rows, columns.start : columns.stop]
                y[rows, columns.start : columns.stop] = _finished(part, columns)


def _finished(part: torch.Tensor, columns: ColumnExtras) -> torch.Tensor:
    sums = part.float()
    if columns.gain is not None:
        sums *= columns.gain
    if columns.shift is not None:
        sums += columns.shift
    return sums.to(part.dtype)


def own_norms(name: str, own: Collection[RowExtras]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows and their own weight of this norm."""
    return [(rows, extras.norms[name]) for rows, extras in own if name in extras.norms]


def embed(
    token_ids: torch.Tensor, weight: torch.Tensor, own: Collection[RowExtras]
) -> torch.Tensor:
    """[num_rows, width]: of the model's weight or the slot's own; ids beyond it are some slot's."""
    if not own:
        return F.embedding(token_ids, weight)
    known = token_ids
    if any(extras.added is not None for _, extras in own):
        known = token_ids.clamp(max=len(weight) - 1)
    embedded = F.embedding(known, weight)
    for rows, extras in own:
        if extras.embedding is not None:
            embedded[rows] = _adapted(embedded[rows], known[rows], extras.embedding)
        if extras.added is not None:
            added = token_ids[rows] - len(weight)
            is_added = added >= 0
            embedded[rows[is_added]] = extras.added.embedding[added[is_added]]
    return embedded


def _adapted(embedded: torch.Tensor, ids: torch.Tensor, mine: EmbeddingExtras) -> torch.Tensor:
    out = embedded if mine.weight is None else F.embedding(ids, mine.weight)
    if mine.tokens is not None:
        found = ids[:, None] == mine.tokens.ids
        is_own = found.any(1)
        out[is_own] = mine.tokens.rows[found[is_own].int().argmax(1)]
    if mine.a is not None and mine.b is not None:
        # In float64 the order of a sum cannot be seen, so neighbours cannot either.
        delta = mine.scale * (F.embedding(ids, mine.a).double() @ mine.b.double())
        out = (out.double() + delta).to(out.dtype)
    if mine.gain is not None:
        out = (out.float() * mine.gain).to(out.dtype)
    return out


class AddedLogits(NamedTuple):
    """Of tokens beyond the base model's vocabulary, for the rows whose adapter has them."""

    rows: torch.Tensor  # int64
    logits: torch.Tensor  # [len(rows), num_added]


class Logits(NamedTuple):
    """Of the rows that sample: of the base model's vocabulary, and beside it of some slots' own tokens."""

    known: torch.Tensor  # [num_samples, vocab_size]
    added: tuple[AddedLogits, ...] = ()


def added_logits(x: torch.Tensor, own: Collection[RowExtras]) -> tuple[AddedLogits, ...]:
    """x: what the head reads, [num_samples, width]."""
    found = []
    for rows, extras in own:
        if extras.added is not None:
            sums = linear(x[rows], extras.added.head)
            if extras.added.shift is not None:
                sums = (sums.float() + extras.added.shift).to(sums.dtype)
            found.append(AddedLogits(rows, sums))
    return tuple(found)
