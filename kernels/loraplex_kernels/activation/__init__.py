"""The gated activations of the feed-forward layer: SwiGLU, and GeGLU by tanh."""

import torch

from loraplex_kernels.device import implementation

__all__ = ["gelu_tanh_and_multiply", "silu_and_multiply"]


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up: [num_tokens, 2 * width], gate first, to [num_tokens, width]."""
    return _activate("silu_and_multiply", gate_up)


def gelu_tanh_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, with gelu's approximation by tanh; shapes as in silu_and_multiply."""
    return _activate("gelu_tanh_and_multiply", gate_up)


def _activate(name: str, gate_up: torch.Tensor) -> torch.Tensor:
    assert gate_up.is_contiguous()
    assert gate_up.shape[1] % 2 == 0
    out: torch.Tensor = getattr(implementation(__name__, gate_up.device.type), name)(gate_up)
    return out
