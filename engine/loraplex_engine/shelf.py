"""The models that lie in the cache: `python -m loraplex_engine.shelf CACHE`. Needs no torch."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from loraplex_engine.importer import is_model
from loraplex_engine.model.families import FAMILIES


def describe(folder: Path) -> str:
    """Name, architecture, type and size of a model folder, and whether the engine runs it."""
    config = json.loads((folder / "config.json").read_text())
    architecture = next(iter(config.get("architectures") or ["unknown"]))
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    num_bytes = sum(shard.stat().st_size for shard in folder.glob("*.safetensors"))
    verdict = "" if architecture in FAMILIES else "  not supported"
    return f"{folder.name}  {architecture}  {dtype}  {num_bytes / 1e9:.2f} GB{verdict}"


def models(cache: Path) -> Iterator[Path]:
    """Complete ones, in order; what another process is just making has a dot before its name."""
    for folder in sorted((cache / "models").glob("[!.]*")):
        if is_model(folder):
            yield folder


if __name__ == "__main__":
    for found in models(Path(sys.argv[1])):
        print(describe(found))  # noqa: T201
