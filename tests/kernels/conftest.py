"""Kernel tests run on poisoned memory."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def memory_is_poisoned() -> Iterator[None]:
    """torch.empty gives NaN, so a kernel that reads what it did not write is seen."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
