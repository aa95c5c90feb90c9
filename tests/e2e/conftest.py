from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.stand import Served, serving, tiny_checkpoint


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("e2e") / "home", model) as running:
        yield running
