"""Drawing from a distribution on the GPU: one program a row, no sorted copy and no sum in memory."""

import torch
import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def pick_kernel(probabilities, uniform, out, row_stride, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    here = probabilities + row * row_stride
    offs = tl.arange(0, BLOCK)
    total = tl.full((), 0.0, dtype=tl.float64)
    for start in range(0, vocab_size, BLOCK):
        i = start + offs
        weights = tl.load(here + i, mask=i < vocab_size, other=0.0).to(tl.float64)
        total += tl.sum(weights, 0)
    target = tl.load(uniform + row) * total
    before = tl.full((), 0.0, dtype=tl.float64)
    found = tl.full((), 0, dtype=tl.int64)
    for start in range(0, vocab_size, BLOCK):
        i = start + offs
        live = i < vocab_size
        weights = tl.load(here + i, mask=live, other=0.0).to(tl.float64)
        is_before = live & (before + tl.cumsum(weights, 0) <= target)
        found += tl.sum(is_before.to(tl.int64), 0)
        before += tl.sum(weights, 0)
    tl.store(out + row, found)


def pick(probabilities: torch.Tensor, uniform: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """As loraplex_kernels.sampling.pick, on the GPU."""
    num_rows, vocab_size = probabilities.shape
    out = torch.empty(num_rows, dtype=torch.int64, device=probabilities.device)
    pick_kernel[(num_rows,)](
        probabilities, uniform, out, probabilities.stride(0), vocab_size, BLOCK=block
    )
    return out
