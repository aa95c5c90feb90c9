"""What the engine's tests share."""

from pathlib import Path

import pytest
from tests.engine.cache import cache_folder

from loraplex_engine import client, wire
from loraplex_engine.importer import DEMO_MODEL, import_model


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M-Instruct as a folder."""
    return import_model(DEMO_MODEL, cache_folder())


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is taken for gone for being silent: on a busy machine everybody is for a while."""
    monkeypatch.setattr(client, "SILENT_S", 3600.0)
    monkeypatch.setattr(client, "GIVE_UP_S", 3600.0)
    monkeypatch.setattr(wire, "VANISHED_S", 3600.0)
