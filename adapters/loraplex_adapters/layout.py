"""The base model's modules as adapters see them; linear ones also fused, as the engine has them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from loraplex_adapters.folder import TOKENIZER_NAME, open_regular
from loraplex_adapters.header import LORA_DTYPES, read_header

CHECKPOINT_DTYPES = {**LORA_DTYPES, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}
EMBEDDING = "model.embed_tokens"
FINAL_NORM = "model.norm"
HEAD = "lm_head"
ModuleKind = Literal["linear", "embedding", "norm"]


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """One linear module of the checkpoint: the columns it owns in a fused projection."""

    module: str  # Hugging Face's path, for example "model.layers.3.self_attn.q_proj"
    out_features: int


@dataclass(frozen=True, slots=True)
class ProjectionSpec:
    """One matrix product of the engine: every slice reads the same input."""

    name: str
    in_features: int
    slices: tuple[SliceSpec, ...]

    @property
    def slice_widths(self) -> tuple[int, ...]:
        return tuple(s.out_features for s in self.slices)


def row_elements(projections: Iterable[ProjectionSpec]) -> int:
    """Of one rank of all slices: a row of A and a column of B each."""
    return sum(each.in_features + width for each in projections for width in each.slice_widths)


class ModuleShape(NamedTuple):
    """What a module maps onto what; an embedding maps token ids, a norm its features onto themselves."""

    in_features: int
    out_features: int
    kind: ModuleKind = "linear"
    has_bias: bool = False

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Of the module's own weight in a checkpoint."""
        if self.kind == "norm":
            return (self.out_features,)
        if self.kind == "embedding":
            return (self.in_features, self.out_features)
        return (self.out_features, self.in_features)


@dataclass(frozen=True, slots=True)
class BaseModel:
    """What an adapter is judged against: a name for warnings, and the modules it can change."""

    name: str | None
    modules: Mapping[str, ModuleShape]
    ties_embeddings: bool = False  # the head's weight is the embedding's
    tokenizer: Path | None = None  # its tokenizer.json

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding; 0 if adapters cannot change it."""
        shape = self.modules.get(EMBEDDING)
        return 0 if shape is None else shape.in_features

    def with_vocabulary(self, vocab_size: int) -> "BaseModel":
        """The same model, its vocabulary resized if that makes it larger."""
        if vocab_size <= self.vocab_size or not {EMBEDDING, HEAD} <= self.modules.keys():
            return self
        resized = {
            EMBEDDING: self.modules[EMBEDDING]._replace(in_features=vocab_size),
            HEAD: self.modules[HEAD]._replace(out_features=vocab_size),
        }
        return replace(self, modules={**self.modules, **resized})

    @staticmethod
    def from_projections(name: str | None, projections: Iterable[ProjectionSpec]) -> "BaseModel":
        """Its linear modules alone."""
        return BaseModel(
            name,
            {
                piece.module: ModuleShape(projection.in_features, piece.out_features)
                for projection in projections
                for piece in projection.slices
            },
        )

    @staticmethod
    def from_checkpoint(name: str | None, folder: Path) -> "BaseModel":
        """What the decoder's modules are, from a Hugging Face folder's safetensors headers."""
        shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with open_regular(path.resolve()) as file:
                header = read_header(file, path.stat().st_size, CHECKPOINT_DTYPES)
            shapes |= {tensor.name: tensor.shape for tensor in header.tensors}
        config = json.loads((folder / "config.json").read_bytes())
        is_tied = f"{EMBEDDING}.weight" in shapes and (
            config.get("tie_word_embeddings", False) or f"{HEAD}.weight" not in shapes
        )
        if is_tied:
            shapes[f"{HEAD}.weight"] = shapes[f"{EMBEDDING}.weight"]
        modules = {}
        for tensor, shape in shapes.items():
            module = tensor.removesuffix(".weight")
            is_known = ".layers." in module or module in (EMBEDDING, FINAL_NORM, HEAD)
            if module != tensor and is_known and len(shape) in (1, 2):
                modules[module] = _module(module, shape, f"{module}.bias" in shapes)
        tokenizer = folder / TOKENIZER_NAME
        return BaseModel(name, modules, is_tied, tokenizer if tokenizer.exists() else None)


def _module(module: str, shape: tuple[int, ...], has_bias: bool) -> ModuleShape:
    if module == EMBEDDING:
        return ModuleShape(shape[0], shape[1], "embedding")
    if len(shape) == 1:
        return ModuleShape(shape[0], shape[0], "norm")
    return ModuleShape(shape[1], shape[0], "linear", has_bias)
