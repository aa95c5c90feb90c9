"""The gated activations on the GPU."""

import torch
import triton
import triton.language as tl

BLOCK = 1024
ROOT = tl.constexpr(1.5957691216057308)  # 2 * sqrt(2 / pi)


@triton.jit
def activation_kernel(gate_up, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    gate = tl.load(gate_up + row * 2 * width + i, mask=live, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + i, mask=live, other=0.0).to(tl.float32)
    z = gate
    if GELU:
        z = ROOT * (gate + 0.044715 * gate * gate * gate)
    value = gate * tl.sigmoid(z) * up
    tl.store(out + row * width + i, value.to(out.dtype.element_ty), mask=live)


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.activation.silu_and_multiply, on the GPU."""
    return _launch(gate_up, is_gelu=False)


def gelu_tanh_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.activation.gelu_tanh_and_multiply, on the GPU."""
    return _launch(gate_up, is_gelu=True)


def _launch(gate_up: torch.Tensor, *, is_gelu: bool) -> torch.Tensor:
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    grid = (num_tokens, triton.cdiv(width, BLOCK))
    activation_kernel[grid](gate_up, out, width, GELU=is_gelu, BLOCK=BLOCK)
    return out
