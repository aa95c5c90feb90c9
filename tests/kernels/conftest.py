"""Kernel tests run on poisoned memory."""

from collections.abc import Iterator

import pytest
import torch

from loraplex_kernels.testing import poisoned_memory


@pytest.fixture(autouse=True)
def memory_is_poisoned() -> Iterator[None]:
    with poisoned_memory():
        assert torch.empty(3).isnan().all()
        yield
