"""The definition of RMS normalisation, in float32."""

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None
) -> torch.Tensor:
    """weight * h / rms(h) with h = x, or residual + x, which then replaces the residual."""
    if residual is not None:
        residual.copy_(residual.float() + x.float())
        x = residual
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + epsilon) * weight.float()).to(
        x.dtype
    )
