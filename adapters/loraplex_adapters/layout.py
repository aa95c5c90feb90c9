"""The base model's linear layers as adapters see them, whole and fused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loraplex_adapters.folder import open_regular
from loraplex_adapters.header import LORA_DTYPES, read_header

CHECKPOINT_DTYPES = {**LORA_DTYPES, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1}


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


class ModuleShape(NamedTuple):
    in_features: int
    out_features: int


@dataclass(frozen=True, slots=True)
class BaseModel:
    """What an adapter is judged against: a name for warnings, and the modules LoRA can adapt."""

    name: str | None
    modules: Mapping[str, ModuleShape]

    @staticmethod
    def from_projections(name: str | None, projections: Iterable[ProjectionSpec]) -> "BaseModel":
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
        """The decoder layers' linear modules, from a Hugging Face folder's safetensors headers."""
        modules = {}
        for path in sorted(folder.glob("*.safetensors")):
            with open_regular(path.resolve()) as file:
                header = read_header(file, path.stat().st_size, CHECKPOINT_DTYPES)
            for tensor in header.tensors:
                module = tensor.name.removesuffix(".weight")
                if module != tensor.name and ".layers." in module and len(tensor.shape) == 2:
                    modules[module] = ModuleShape(tensor.shape[1], tensor.shape[0])
        return BaseModel(name, modules)
