"""What an adapter changes beside adding LoRA to a projection: whole weights, biases, DoRA, tokens.

A module with extras computes y = gain * (W x + s B A x) + shift, with the adapter's own W or rows of it
where there is one. Gain and shift are vectors: of DoRA, of biases, or absent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Protocol

import torch

from loraplex_adapters.errors import NonFiniteTensor
from loraplex_adapters.layout import EMBEDDING, HEAD, BaseModel
from loraplex_adapters.tensor_names import Part

NORM_ROWS = 4096  # of a weight whose norms are computed at once

ModuleTensors = Mapping[Part, torch.Tensor]


class BaseTensors(Protocol):
    """The base model's own tensors by the checkpoint's names, in the engine's dtype."""

    def tensor(self, name: str) -> torch.Tensor: ...


class LoraFactors(NamedTuple):
    """One module's weights as rows: a is [rank, in_features], b is [rank, out_features], in any strides."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]


class TokenRows(NamedTuple):
    """Rows of a vocabulary's weight that are replaced."""

    ids: torch.Tensor  # int64 [num_tokens]
    rows: torch.Tensor  # [num_tokens, width]


@dataclass(frozen=True, slots=True)
class LinearExtras:
    weight: torch.Tensor | None = None  # [out_features, in_features], instead of the base model's
    tokens: TokenRows | None = None
    gain: torch.Tensor | None = None  # float32 [out_features]
    shift: torch.Tensor | None = None  # float32 [out_features]

    def __bool__(self) -> bool:
        return _is_any(self)


@dataclass(frozen=True, slots=True)
class EmbeddingExtras:
    weight: torch.Tensor | None = None  # [vocab_size, width], instead of the base model's
    tokens: TokenRows | None = None
    a: torch.Tensor | None = None  # [vocab_size, rank]
    b: torch.Tensor | None = None  # [rank, width]
    scale: float = 0.0
    gain: torch.Tensor | None = None  # float32 [width]

    def __bool__(self) -> bool:
        return _is_any(self)


class AddedRows(NamedTuple):
    """Rows beyond the base model's vocabulary, with all that the adapter does to them."""

    embedding: torch.Tensor  # [num_added, width]
    head: torch.Tensor  # [num_added, width]
    shift: torch.Tensor | None  # float32 [num_added], of the head


@dataclass(frozen=True, slots=True)
class Extras:
    """Of one adapter, by the base model's modules; mostly there are none."""

    linear: Mapping[str, LinearExtras] = field(default_factory=dict)
    embedding: EmbeddingExtras | None = None
    norms: Mapping[str, torch.Tensor] = field(default_factory=dict)
    added: AddedRows | None = None

    def __bool__(self) -> bool:
        return bool(self.linear or self.embedding or self.norms or self.added)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self.norms.values()
        yield from (tensor for tensor in self.added or () if tensor is not None)
        for part in (*self.linear.values(), self.embedding):
            if part is not None:
                yield from _tensors_of(part)


def _tensors_of(part: LinearExtras | EmbeddingExtras) -> Iterator[torch.Tensor]:
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, TokenRows):
            yield from value
        elif isinstance(value, torch.Tensor):
            yield value


@dataclass(frozen=True, slots=True)
class ExtrasReader:
    """Makes extras of a version's tensors; DoRA and biases need the base model's."""

    base: BaseModel
    tensors: BaseTensors

    def read(
        self,
        modules: Mapping[str, ModuleTensors],
        factors: Mapping[str, LoraFactors],
        token_ids: Mapping[str, tuple[int, ...]],
        *,
        is_tied: bool,
    ) -> Extras:
        """`factors` are those of all modules, the embedding's among them."""
        linear: dict[str, LinearExtras] = {}
        norms: dict[str, torch.Tensor] = {}
        embedding = None
        if is_tied and HEAD in modules and "weight" in modules.get(EMBEDDING, {}):
            tied: ModuleTensors = {**modules[HEAD], "weight": modules[EMBEDDING]["weight"]}
            modules = {**modules, HEAD: tied}
        for name, parts in modules.items():
            tokens = None
            if "trainable_tokens" in parts:
                tokens = TokenRows(torch.tensor(token_ids[name]), parts["trainable_tokens"])
            kind = self.base.modules[name].kind
            if kind == "norm":
                norms[name] = parts["weight"]
            elif kind == "embedding":
                embedding = self._embedding(parts, factors.get(name), tokens)
            elif parts.keys() - {"lora_A.weight", "lora_B.weight"}:
                linear[name] = self._linear(name, parts, factors.get(name), tokens)
        if is_tied and embedding is not None:
            own = linear.get(HEAD, LinearExtras())
            linear[HEAD] = LinearExtras(embedding.weight, embedding.tokens, own.gain, own.shift)
        return Extras({name: x for name, x in linear.items() if x}, embedding, norms)

    def _embedding(
        self, parts: ModuleTensors, factors: LoraFactors | None, tokens: TokenRows | None
    ) -> EmbeddingExtras | None:
        weight = self._own_weight(EMBEDDING, parts)
        if factors is None:
            found = EmbeddingExtras(weight, tokens)
            return found or None
        gain = None
        if "lora_magnitude_vector" in parts:
            turned = (parts["weight"] if "weight" in parts else self._weight(EMBEDDING)).T
            gain = _gain(EMBEDDING, parts["lora_magnitude_vector"], turned, factors)
        rows = factors.a.T.contiguous()
        return EmbeddingExtras(weight, tokens, rows, factors.b, factors.scale, gain)

    def _linear(
        self,
        name: str,
        parts: ModuleTensors,
        factors: LoraFactors | None,
        tokens: TokenRows | None,
    ) -> LinearExtras:
        weight, gain, shift = self._own_weight(name, parts), None, None
        if factors is not None and "lora_magnitude_vector" in parts:
            against = parts["weight"] if "weight" in parts else self._weight(name)
            gain = _gain(name, parts["lora_magnitude_vector"], against, factors)
        bias = None
        if self.base.modules[name].has_bias and (gain is not None or "bias" in parts):
            bias = self.tensors.tensor(f"{name}.bias").float().cpu()
            # The bias stays outside the gain, but the sum it is applied to has it already.
            shift = parts.get("bias", bias) - (bias if gain is None else gain * bias)
        if factors is not None and "lora_B.bias" in parts:
            added = factors.scale * parts["lora_B.bias"]
            added = added if gain is None else gain * added
            shift = added if shift is None else shift + added
        return LinearExtras(weight, tokens, gain, shift)

    def _own_weight(self, name: str, parts: ModuleTensors) -> torch.Tensor | None:
        """None where PEFT has only saved the base model's along with the rest."""
        weight = parts.get("weight")
        if weight is None:
            return None
        base = self._weight(name)
        return None if torch.equal(weight[: len(base)], base) else weight

    def _weight(self, name: str) -> torch.Tensor:
        is_tied = name == HEAD and self.base.ties_embeddings
        return self.tensors.tensor(f"{EMBEDDING if is_tied else name}.weight").cpu()


def _is_any(part: LinearExtras | EmbeddingExtras) -> bool:
    return next(_tensors_of(part), None) is not None


def _gain(
    name: str, magnitude: torch.Tensor, weight: torch.Tensor, factors: LoraFactors
) -> torch.Tensor:
    """DoRA's m / |W + s B A|, of each row of W: [out_features]."""
    b = factors.scale * factors.b.float()
    a = factors.a.float()
    norms = [
        torch.linalg.vector_norm(rows.float() + columns.T @ a, dim=1)
        for rows, columns in zip(
            torch.split(weight, NORM_ROWS), torch.split(b, NORM_ROWS, dim=1), strict=True
        )
    ]
    gain = magnitude / torch.cat(norms)
    if not bool(gain.isfinite().all()):
        raise NonFiniteTensor(f"the magnitudes of {name} belong to no weight", tensor=name)
    return gain
