"""The definition of drawing from a distribution; torch's own operations, which serve the CPU too."""

import torch


def pick(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.sampling.pick."""
    cumulative = probabilities.double().cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
