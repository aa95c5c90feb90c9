"""What an operation must do at the least: the floor that its time on a GPU is compared with."""

from collections.abc import Iterable
from typing import NamedTuple

from loraplex_kernels.gpu_configs import TokenBucket

ITEM_BYTES = 2  # bfloat16
LAYER_8B = {  # projections of Llama-3-8B: input features, columns of each slice
    "qkv": (4096, (4096, 1024, 1024)),
    "o": (4096, (4096,)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}


class Work(NamedTuple):
    """Multiplications and additions, and bytes that memory must deliver or take once."""

    flops: int
    num_bytes: int

    @property
    def intensity(self) -> float:
        """Operations a byte: below a GPU's own ratio (H100: about 300 in bfloat16) memory is the limit."""
        return self.flops / self.num_bytes


class Run(NamedTuple):
    """Tokens of one adapter in a step."""

    num_tokens: int
    rank: int


def example_runs(tokens: TokenBucket, rank: int) -> tuple[Run, ...]:
    """What LoRA's intensity is told of: sixteen streams of as many adapters, or one prompt."""
    return (Run(1, rank),) * 16 if tokens == "few" else (Run(512, rank),)


def shrink_work(runs: Iterable[Run], in_features: int, num_slices: int) -> Work:
    """x A^T of all slices: each adapter's A once, each token's x once."""
    runs = tuple(runs)
    weights = sum(run.rank for run in runs) * num_slices * in_features
    inputs = sum(run.num_tokens for run in runs) * in_features
    sums = sum(run.num_tokens * run.rank for run in runs) * num_slices
    return Work(2 * sums * in_features, (weights + inputs) * ITEM_BYTES)


def expand_work(runs: Iterable[Run], slice_widths: Iterable[int]) -> Work:
    """y += (…) B: each adapter's B once, each token's y read and written."""
    runs, width = tuple(runs), sum(slice_widths)
    weights = sum(run.rank for run in runs) * width
    outputs = 2 * sum(run.num_tokens for run in runs) * width
    sums = sum(run.num_tokens * run.rank for run in runs)
    return Work(2 * sums * width, (weights + outputs) * ITEM_BYTES)


def lora_work(runs: Iterable[Run], in_features: int, slice_widths: tuple[int, ...]) -> Work:
    runs = tuple(runs)
    shrink = shrink_work(runs, in_features, len(slice_widths))
    expand = expand_work(runs, slice_widths)
    return Work(shrink.flops + expand.flops, shrink.num_bytes + expand.num_bytes)


def attention_work(
    lengths: Iterable[tuple[int, int]], heads: int, kv_heads: int, dim: int, window: int = 0
) -> Work:
    """Of (new tokens, tokens in the cache with them) of each sequence."""
    flops = num_bytes = 0
    for num_new, context in lengths:
        seen = sum(
            min(position + 1, window or position + 1)
            for position in range(context - num_new, context)
        )
        read = min(context, num_new + window - 1) if window else context
        flops += 4 * seen * heads * dim
        num_bytes += 2 * (read * kv_heads + num_new * heads) * dim * ITEM_BYTES
    return Work(flops, num_bytes)


def norm_work(num_tokens: int, width: int, *, has_residual: bool = True) -> Work:
    """x read and the result written; a residual read and written too."""
    moved = 4 if has_residual else 2
    return Work(6 * num_tokens * width, moved * num_tokens * width * ITEM_BYTES)


def activation_work(num_tokens: int, width: int) -> Work:
    return Work(6 * num_tokens * width, 3 * num_tokens * width * ITEM_BYTES)


def rotary_work(num_tokens: int, heads: int, kv_heads: int, dim: int) -> Work:
    """Queries turned in place, keys turned and values copied into the cache."""
    elements = num_tokens * dim
    turned = elements * (heads + kv_heads)
    return Work(3 * turned, (2 * turned + 2 * elements * kv_heads) * ITEM_BYTES)


def most_likely_work(num_rows: int, vocab_size: int, item_bytes: int = ITEM_BYTES) -> Work:
    """Each logit read and compared."""
    return Work(num_rows * vocab_size, num_rows * vocab_size * item_bytes)


def keep_work(num_rows: int, vocab_size: int) -> Work:
    """Each float32 compared and summed once a bit, read and written, if a row stays in the caches."""
    return Work(2 * 32 * num_rows * vocab_size, 2 * 4 * num_rows * vocab_size)


def pick_work(num_rows: int, vocab_size: int) -> Work:
    """Each float32 weight summed and summed up, if a row stays in the caches between the two."""
    return Work(2 * num_rows * vocab_size, 4 * num_rows * vocab_size)
