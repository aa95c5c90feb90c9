"""The definition of the gated activations, in float32."""

import torch


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [num_tokens, 2 * width]."""
    gate, up = gate_up.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def gelu_tanh_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up of [num_tokens, 2 * width]."""
    gate, up = gate_up.float().chunk(2, -1)
    return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)
