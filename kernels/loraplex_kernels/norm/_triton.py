"""RMS normalisation on the GPU: one program for a row."""

import torch
import triton
import triton.language as tl


@triton.jit
def norm_kernel(
    x,
    residual,
    weight,
    out,
    epsilon,
    offset,
    width,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * width
    i = tl.arange(0, BLOCK)
    live = i < width
    h = tl.load(x + start + i, mask=live, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        h += tl.load(residual + start + i, mask=live, other=0.0).to(tl.float32)
        rounded = h.to(residual.dtype.element_ty)
        tl.store(residual + start + i, rounded, mask=live)
        h = rounded.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(h * h, 0) / width + epsilon)
    w = tl.load(weight + i, mask=live, other=0.0).to(tl.float32)
    tl.store(out + start + i, (h * factor * (w + offset)).to(out.dtype.element_ty), mask=live)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    residual: torch.Tensor | None,
    offset: float,
) -> torch.Tensor:
    """As loraplex_kernels.norm.rms_norm, on the GPU."""
    out = torch.empty_like(x)
    norm_kernel[(x.shape[0],)](
        x,
        x if residual is None else residual,
        weight,
        out,
        epsilon,
        offset,
        x.shape[1],
        HAS_RESIDUAL=residual is not None,
        BLOCK=triton.next_power_of_2(x.shape[1]),
    )
    return out
