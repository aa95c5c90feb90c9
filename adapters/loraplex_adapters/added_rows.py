"""A vocabulary that is larger than the base model's: its part is served as any other's, the rows beyond
it are merged once, at load, and lie beside it."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from loraplex_adapters.errors import NonFiniteTensor
from loraplex_adapters.extras import (
    AddedRows,
    EmbeddingExtras,
    Extras,
    LinearExtras,
    LoraFactors,
    ModuleTensors,
    TokenRows,
)
from loraplex_adapters.layout import EMBEDDING, HEAD

Factors = Mapping[str, LoraFactors]


def split_vocabulary(
    extras: Extras,
    factors: Factors,
    modules: Mapping[str, ModuleTensors],
    token_ids: Mapping[str, tuple[int, ...]],
    vocab_size: int,
    *,
    is_tied: bool,
) -> Extras:
    """`extras` of a whole vocabulary, `factors` its LoRA; `vocab_size` is the base model's."""
    head = extras.linear.get(HEAD, LinearExtras())
    raw = _raw_rows(modules[EMBEDDING], token_ids.get(EMBEDDING, ()), vocab_size)
    raw_head = raw
    if not is_tied:
        raw_head = _raw_rows(modules[HEAD], token_ids.get(HEAD, ()), vocab_size)
    shift = None if head.shift is None else head.shift[vocab_size:]
    rows = AddedRows(
        _merged_embedding(raw, extras.embedding, vocab_size),
        _merged_head(raw_head, head, factors.get(HEAD), vocab_size),
        shift,
    )
    if not all(bool(tensor.isfinite().all()) for tensor in rows if tensor is not None):
        raise NonFiniteTensor(f"added rows are not finite as {raw.dtype}", tensor=EMBEDDING)
    linear = {**extras.linear, HEAD: _first_columns(head, vocab_size)}
    embedding = None if extras.embedding is None else _first_rows(extras.embedding, vocab_size)
    return replace(
        extras,
        linear={name: part for name, part in linear.items() if part},
        embedding=embedding or None,
        added=rows,
    )


def first_columns(factors: LoraFactors, vocab_size: int) -> LoraFactors:
    """The base model's part of a head's LoRA."""
    return factors._replace(b=factors.b[:, :vocab_size].contiguous())


def _raw_rows(parts: ModuleTensors, ids: tuple[int, ...], vocab_size: int) -> torch.Tensor:
    """Before LoRA: as they were saved with the module, or one by one."""
    new = [(at, token - vocab_size) for at, token in enumerate(ids) if token >= vocab_size]
    if "weight" in parts:
        rows = parts["weight"][vocab_size:].clone()
    else:
        rows = parts["trainable_tokens"].new_empty((len(new), parts["trainable_tokens"].shape[1]))
    for at, row in new:
        rows[row] = parts["trainable_tokens"][at]
    return rows


def _merged_embedding(
    raw: torch.Tensor, own: EmbeddingExtras | None, vocab_size: int
) -> torch.Tensor:
    rows = raw.float()
    if own is not None and own.a is not None and own.b is not None:
        rows = rows + own.scale * (own.a[vocab_size:].float() @ own.b.float())
        if own.gain is not None:
            rows = rows * own.gain
    return rows.to(raw.dtype)


def _merged_head(
    raw: torch.Tensor, own: LinearExtras, factors: LoraFactors | None, vocab_size: int
) -> torch.Tensor:
    rows = raw.float()
    if factors is not None:
        rows = rows + factors.scale * (factors.b[:, vocab_size:].float().T @ factors.a.float())
    if own.gain is not None:
        rows = rows * own.gain[vocab_size:, None]
    return rows.to(raw.dtype)


def _first_columns(own: LinearExtras, vocab_size: int) -> LinearExtras:
    return LinearExtras(
        _first(own.weight, vocab_size),
        _known(own.tokens, vocab_size),
        _first(own.gain, vocab_size),
        _first(own.shift, vocab_size),
    )


def _first_rows(own: EmbeddingExtras, vocab_size: int) -> EmbeddingExtras:
    return replace(
        own,
        weight=_first(own.weight, vocab_size),
        tokens=_known(own.tokens, vocab_size),
        a=_first(own.a, vocab_size),
    )


def _first(tensor: torch.Tensor | None, count: int) -> torch.Tensor | None:
    return None if tensor is None else tensor[:count].contiguous()


def _known(tokens: TokenRows | None, vocab_size: int) -> TokenRows | None:
    if tokens is None:
        return None
    is_known = tokens.ids < vocab_size
    return TokenRows(tokens.ids[is_known], tokens.rows[is_known]) if is_known.any() else None
