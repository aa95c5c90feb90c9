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
    added_tokens: tuple[str, ...] = ()  # texts

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "LoadReport":
        modules = tuple(
            ModuleReport(**{**entry, "parts": tuple(entry.get("parts", ()))})
            for entry in content["modules"]
        )
        lists = {key: tuple(content[key]) for key in ("unadapted", "warnings")}
        lists["added_tokens"] = tuple(content.get("added_tokens", ()))
        return LoadReport(**{**content, **lists, "modules": modules})


@dataclass(frozen=True, slots=True)
class ParityCheck:
    """How far a version's logits for a fixed prompt are from those of a dense merge of it.

    Both figures are root mean squares, relative to the dense merge's logits.
    """

    version: str
    passed: bool
    error: float | None = None  # of what is served; None: it could not be tested, `reason` says why
    effect: float | None = None  # what the adapter changes at all
    host_bytes: int | None = None  # what it takes there, as it is served
    device_bytes: int | None = None  # its rows of all slabs, and what lies beside them
    seconds: float = 0.0
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Without the version, which it is stored with."""
        return {name: value for name, value in asdict(self).items() if name != "version"}
