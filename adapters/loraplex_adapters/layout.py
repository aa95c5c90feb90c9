"""The base model's linear layers as adapters see them: fused projections and the modules they fuse."""

from dataclasses import dataclass


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
