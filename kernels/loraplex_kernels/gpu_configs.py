"""How the Triton kernels are cut, by what is asked of them: one table for launchers, tests, benchmarks.

No autotuning: it needs a driver, and a table can be compiled and tested without a GPU.
"""

from typing import NamedTuple


class LoraConfig(NamedTuple):
    """Tiles of grouped LoRA; block_m is the longest chunk of the chunk table."""

    block_m: int
    block_k: int  # input features a shrink program takes at a time
    split_k: int  # fixed partial sums of the shrink
    block_n: int  # output columns of an expand program
    num_warps: int
    shrink_stages: int
    # One stage: ptxas before 13.3 miscompiles a pipelined expand with a cast on sm_90
    expand_stages: int = 1


class AttentionConfig(NamedTuple):
    """Tiles of attention: block_m rows are query tokens times the heads that share a kv head."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


ARCHITECTURES = (80, 90, 100)
RANK_CLASSES = (16, 32, 64, 128, 256)  # tl.dot needs at least 16: smaller ranks are padded
LORA = {
    16: LoraConfig(16, 128, 4, 128, 4, 3),
    32: LoraConfig(16, 128, 4, 128, 4, 3),
    64: LoraConfig(16, 64, 4, 128, 4, 3),
    128: LoraConfig(16, 64, 4, 64, 4, 3),
    256: LoraConfig(16, 32, 4, 64, 4, 3),
}
HEAD_DIMS = (64, 128, 256)
DECODE = dict.fromkeys(HEAD_DIMS, AttentionConfig(16, 64, 4, 2))
# With four warps, tiles of 64 x 64 spill: 128 dimensions on sm_80, 256 on sm_90
PREFILL = {
    64: AttentionConfig(64, 64, 4, 2),
    128: AttentionConfig(64, 64, 8, 2),
    256: AttentionConfig(64, 32, 8, 2),
}


def head_dim_class(head_dim: int) -> int:
    """The smallest class that holds a head dimension."""
    for dims in HEAD_DIMS:
        if head_dim <= dims:
            return dims
    raise ValueError(f"head dimension {head_dim} is above {HEAD_DIMS[-1]}")


def rank_class(rank: int) -> int:
    """The smallest class that holds a rank."""
    for ranks in RANK_CLASSES:
        if rank <= ranks:
            return ranks
    raise ValueError(f"rank {rank} is above {RANK_CLASSES[-1]}")
