"""The gated activation of the feed-forward layer (SwiGLU)."""

import torch

from loraplex_kernels.device import implementation

__all__ = ["silu_and_multiply"]


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: [num_tokens, 2 * width], gate first, to [num_tokens, width]."""
    assert gate_up.is_contiguous()
    assert gate_up.shape[1] % 2 == 0
    out: torch.Tensor = implementation(__name__, gate_up.device.type).silu_and_multiply(gate_up)
    return out
