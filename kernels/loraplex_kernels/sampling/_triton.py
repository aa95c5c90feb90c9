"""Sampling on the GPU: one program a row, no sorted copy and no sum in memory."""

import torch
import triton
import triton.language as tl

BLOCK = 2048


@triton.jit
def most_likely_kernel(logits, out, row_stride, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * row_stride
    offs = tl.arange(0, BLOCK)
    largest = tl.full((), float("-inf"), dtype=tl.float32)
    found = tl.full((), 0, dtype=tl.int32)
    for start in range(0, vocab_size, BLOCK):
        i = start + offs
        value = tl.load(here + i, mask=i < vocab_size, other=float("-inf")).to(tl.float32)
        best = tl.max(value, 0)
        first = tl.min(tl.where(value == best, i, vocab_size), 0)
        found = tl.where(best > largest, first, found)
        largest = tl.maximum(largest, best)
    tl.store(out + row, found.to(tl.int64))


@triton.jit
def in_order(value):
    """Integers that compare as float32 numbers do; both zeros are one."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def keep_kernel(
    values,
    targets,  # [num_rows] float64; 0: the row is kept as it is
    row_stride,
    vocab_size,
    BY_WEIGHT: tl.constexpr,  # reach the target with the numbers' sum, else with their count
    BLOCK: tl.constexpr,
):
    """The largest limit at and above which the target is reached, one bit after the other; clear the rest."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    if target <= 0.0:
        return
    here = values + row * row_stride
    offs = tl.arange(0, BLOCK)
    limit = tl.full((), -2147483648, dtype=tl.int64)
    step = tl.full((), 2147483648, dtype=tl.int64)
    for _ in range(32):
        higher = (limit + step).to(tl.int32)
        reached = tl.full((), 0.0, dtype=tl.float64)
        for start in range(0, vocab_size, BLOCK):
            i = start + offs
            live = i < vocab_size
            value = tl.load(here + i, mask=live, other=0.0)
            is_above = live & (in_order(value) >= higher)
            if BY_WEIGHT:
                reached += tl.sum(tl.where(is_above, value, 0.0).to(tl.float64), 0)
            else:
                reached += tl.sum(is_above.to(tl.int32), 0).to(tl.float64)
        limit = tl.where(reached >= target, limit + step, limit)
        step = step // 2
    nothing: tl.constexpr = 0.0 if BY_WEIGHT else float("-inf")
    for start in range(0, vocab_size, BLOCK):
        i = start + offs
        live = i < vocab_size
        value = tl.load(here + i, mask=live, other=0.0)
        is_below = live & (in_order(value) < limit.to(tl.int32))
        tl.store(here + i, tl.where(is_below, nothing, value), mask=live)


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


def most_likely(logits: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """As loraplex_kernels.sampling.most_likely, on the GPU."""
    num_rows, vocab_size = logits.shape
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    most_likely_kernel[(num_rows,)](logits, out, logits.stride(0), vocab_size, BLOCK=block)
    return out


def keep_top_k(logits: torch.Tensor, top_k: torch.Tensor, block: int = BLOCK) -> None:
    """As loraplex_kernels.sampling.keep_top_k, on the GPU."""
    num_rows, vocab_size = logits.shape
    keep_kernel[(num_rows,)](
        logits, top_k.double(), logits.stride(0), vocab_size, BY_WEIGHT=False, BLOCK=block
    )


def keep_top_p(probabilities: torch.Tensor, top_p: torch.Tensor, block: int = BLOCK) -> None:
    """As loraplex_kernels.sampling.keep_top_p, on the GPU."""
    num_rows, vocab_size = probabilities.shape
    targets = torch.where(top_p < 1, top_p, 0.0)
    keep_kernel[(num_rows,)](
        probabilities, targets, probabilities.stride(0), vocab_size, BY_WEIGHT=True, BLOCK=block
    )


def pick(probabilities: torch.Tensor, uniform: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """As loraplex_kernels.sampling.pick, on the GPU."""
    num_rows, vocab_size = probabilities.shape
    out = torch.empty(num_rows, dtype=torch.int64, device=probabilities.device)
    pick_kernel[(num_rows,)](
        probabilities, uniform, out, probabilities.stride(0), vocab_size, BLOCK=block
    )
    return out
