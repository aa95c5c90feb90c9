"""RMS normalisation, fused with the residual addition before it."""

import torch

from loraplex_kernels.device import implementation

__all__ = ["rms_norm"]


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    residual: torch.Tensor | None = None,
    offset: float = 0.0,
) -> torch.Tensor:
    """Normalise rows; with a residual, x is added to it in place and the sum is normalised.

    x, residual: [num_tokens, width] contiguous; weight: [width] of the same type, to which `offset` is
    added in float32. The sum is rounded to the residual's type before it is normalised.
    """
    assert x.is_contiguous()
    assert x.dtype == weight.dtype
    assert residual is None or (residual.is_contiguous() and residual.shape == x.shape)
    out: torch.Tensor = implementation(__name__, x.device.type).rms_norm(
        x, weight, epsilon, residual, offset
    )
    return out
