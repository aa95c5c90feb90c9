"""The definition of RMS normalisation, in float32."""

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    residual: torch.Tensor | None,
    offset: float = 0.0,
) -> torch.Tensor:
    """(weight + offset) * h / rms(h) with h = x, or residual + x, which then replaces the residual."""
    if residual is not None:
        residual.copy_(residual.float() + x.float())
        x = residual
    h = x.float()
    normed = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + epsilon)
    return (normed * (weight.float() + offset)).to(x.dtype)
