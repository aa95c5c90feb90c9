"""What the engine's tests share."""

from pathlib import Path

import pytest
from tests.engine.cache import cache_folder

from loraplex_engine.importer import DEMO_MODEL, import_model


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M-Instruct as a folder."""
    return import_model(DEMO_MODEL, cache_folder())
