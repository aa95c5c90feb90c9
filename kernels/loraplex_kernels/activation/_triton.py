"""The gated activation on the GPU."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def activation_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = i < width
    gate = tl.load(gate_up + row * 2 * width + i, mask=live, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + i, mask=live, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + row * width + i, value.to(out.dtype.element_ty), mask=live)


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.activation.silu_and_multiply, on the GPU."""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    activation_kernel[(num_tokens, triton.cdiv(width, BLOCK))](gate_up, out, width, BLOCK=BLOCK)
    return out
