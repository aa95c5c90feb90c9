"""What the tests of every kernel share: the odd grid, the tolerances, poisoned outputs."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

NUM_TOKENS = (1, 63, 200)
RANKS = (1, 4, 8, 16, 64)

# RMS of the error over RMS of the reference. A dropped row of a rank-16 product is above 1e-1,
# a sum kept in bfloat16 above 1e-2, rounding the result alone is 1.7e-3 (bfloat16), 2e-4 (float16).
RMS_TOLERANCE = {torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 3e-3}


def rms_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative root mean square error; NaN counts as infinite."""
    difference = (actual.double() - expected.double()).square().mean().sqrt()
    error = float(difference / expected.double().square().mean().sqrt().clamp_min(1e-30))
    return float("inf") if error != error else error


def assert_close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal within the tolerance of the element type that was computed in."""
    error = rms_error(actual, expected)
    assert error <= RMS_TOLERANCE[dtype], f"{error:.2e} > {RMS_TOLERANCE[dtype]:.0e} in {dtype}"


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN meanwhile, so a kernel that reads what it did not write is seen."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory that no kernel may read before it has written it."""
    return torch.full(shape, float("nan"), dtype=dtype)


def token_slots(mix: str, num_tokens: int, num_slots: int, seed: int) -> npt.NDArray[np.int32]:
    """Adapter slots of a step: one adapter, all different, base model only, or a random mix."""
    match mix:
        case "one":
            slots = np.full(num_tokens, 2)
        case "different":
            slots = np.arange(num_tokens) % num_slots
        case "base":
            slots = np.full(num_tokens, -1)
        case _:
            slots = np.random.default_rng(seed).integers(-1, num_slots, num_tokens)
    return slots.astype(np.int32)
