"""What became of an adapter when it was judged, ready for JSON."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """One adapted module, with the rank and scale it is served with; rank 0: no LoRA."""

    module: str
    rank: int
    alpha: float
    scale: float
    num_bytes: int
    parts: tuple[str, ...] = ()  # beside lora_A and lora_B, as tensor_names calls them


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Which modules an adapter changes, how strongly, and what deserves a second look."""

    base_model: str | None  # as the adapter's config names it
    rank: int  # the largest of any module: the rows it takes in the slab
    num_bytes: int
    modules: tuple[ModuleReport, ...]
    unadapted: tuple[str, ...]  # modules of the base model that the adapter leaves alone
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "LoadReport":
        modules = tuple(
            ModuleReport(**{**entry, "parts": tuple(entry.get("parts", ()))})
            for entry in content["modules"]
        )
        lists = {key: tuple(content[key]) for key in ("unadapted", "warnings")}
        return LoadReport(**{**content, **lists, "modules": modules})
