"""What the engine's tests share."""

import os
from pathlib import Path

import pytest

from loraplex_engine.importer import DEMO_MODEL, import_model


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M-Instruct as a folder, made on first use and kept for all runs."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loraplex"
    return import_model(DEMO_MODEL, Path(os.environ.get("LORAPLEX_CACHE", default)))
