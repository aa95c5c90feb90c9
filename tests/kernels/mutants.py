"""Kernels with a fault put in: a check that does not find it is none."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

NARROW = (".to(tl.int64)", "")  # the numbers of programs, rows and blocks stay as they are: 32 bits


def mutant(module: ModuleType, folder: Path, *changes: tuple[str, str]) -> ModuleType:
    """A module again from its text with each of `changes` made everywhere: what stood there, what stands."""
    assert module.__file__ is not None
    text = Path(module.__file__).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    name = f"mutant_{len(list(folder.iterdir()))}_{module.__name__.rpartition('.')[2]}"
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    changed = importlib.util.module_from_spec(spec)
    sys.modules[name] = changed
    spec.loader.exec_module(changed)
    return changed
