"""Drawing from a distribution: the inverse of its distribution function, in the vocabulary's order."""

import torch

from loraplex_kernels.device import implementation
from loraplex_kernels.sampling import reference

__all__ = ["pick"]


def pick(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token of each row up to which its weights exceed `uniform` of their sum.

    probabilities: float32 [num_rows, vocab_size], not negative, of any sum; uniform: float64 [num_rows] in
    [0, 1). Sums are taken in float64 and in a fixed order: a row does not depend on the others.
    """
    assert probabilities.dtype == torch.float32
    assert uniform.dtype == torch.float64
    if probabilities.device.type == "cpu":
        return reference.pick(probabilities, uniform)
    assert probabilities.stride(1) == 1
    found: torch.Tensor = implementation(__name__, probabilities.device.type).pick(
        probabilities, uniform
    )
    return found
