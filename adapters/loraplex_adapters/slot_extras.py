"""Extras on the device, found by what the decoder asks for: projections, norms, the embedding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from loraplex_adapters.extras import AddedRows, EmbeddingExtras, Extras, LinearExtras, TokenRows
from loraplex_adapters.layout import ProjectionSpec
from loraplex_kernels.linear import PackedWeight, pack_weight


class PackedRows(NamedTuple):
    """Columns of a projection that the slot computes with rows of its own."""

    ids: torch.Tensor  # int64 [num_columns], of the projection's columns
    weight: PackedWeight


class PlacedRows(NamedTuple):
    """Rows beyond the base model's vocabulary."""

    embedding: torch.Tensor  # [num_added, width]
    head: PackedWeight
    shift: torch.Tensor | None  # float32 [num_added]


@dataclass(frozen=True, slots=True)
class ColumnExtras:
    """What a slot changes in columns [start, stop) of a fused projection."""

    start: int
    stop: int
    weight: PackedWeight | None = None
    tokens: PackedRows | None = None
    gain: torch.Tensor | None = None  # float32 [stop - start]
    shift: torch.Tensor | None = None  # float32 [stop - start]


@dataclass(frozen=True, slots=True)
class SlotExtras:
    """Immutable, so a step in flight keeps what it was launched with."""

    columns: Mapping[str, tuple[ColumnExtras, ...]]  # by projection
    norms: Mapping[str, torch.Tensor]  # by module
    embedding: EmbeddingExtras | None
    added: PlacedRows | None = None


def place_extras(
    extras: Extras, projections: Sequence[ProjectionSpec], device: torch.device
) -> SlotExtras:
    """Copies on the device, weights packed as the base model's are."""
    columns: dict[str, tuple[ColumnExtras, ...]] = {}
    for projection in projections:
        start, found = 0, []
        for piece in projection.slices:
            own = extras.linear.get(piece.module)
            if own is not None:
                found.append(_column_extras(own, start, start + piece.out_features, device))
            start += piece.out_features
        if found:
            columns[projection.name] = tuple(found)
    norms = {name: weight.to(device) for name, weight in extras.norms.items()}
    embedding = None if extras.embedding is None else _on_device(extras.embedding, device)
    return SlotExtras(columns, norms, embedding, place_rows(extras.added, device))


def place_rows(rows: AddedRows | None, device: torch.device) -> PlacedRows | None:
    if rows is None:
        return None
    head = pack_weight(rows.head.to(device))
    return PlacedRows(rows.embedding.to(device), head, _moved(rows.shift, device))


def _column_extras(own: LinearExtras, start: int, stop: int, device: torch.device) -> ColumnExtras:
    tokens = None
    if own.tokens is not None:
        ids, rows = own.tokens
        tokens = PackedRows(ids.to(device) + start, pack_weight(rows.to(device)))
    return ColumnExtras(
        start,
        stop,
        None if own.weight is None else pack_weight(own.weight.to(device)),
        tokens,
        _moved(own.gain, device),
        _moved(own.shift, device),
    )


def _on_device(own: EmbeddingExtras, device: torch.device) -> EmbeddingExtras:
    tokens = own.tokens
    return replace(
        own,
        weight=_moved(own.weight, device),
        tokens=None if tokens is None else TokenRows(*(each.to(device) for each in tokens)),
        a=_moved(own.a, device),
        b=_moved(own.b, device),
        gain=_moved(own.gain, device),
    )


def _moved(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)
