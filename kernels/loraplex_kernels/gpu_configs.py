"""How the Triton kernels are cut, by what is asked of them: one table for launchers, tests, benchmarks.

No autotuning: it needs a driver, and a table can be compiled and tested without a GPU. Which sums are
taken in which order (block_k, split_k, num_splits) never depends on how many tokens a step has.
"""

import functools
from typing import Literal, NamedTuple

import torch

TokenBucket = Literal["few", "many"]


class LoraKey(NamedTuple):
    architecture: int
    rank_class: int
    tokens: TokenBucket


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


class AttentionKey(NamedTuple):
    architecture: int
    head_dim: int


class AttentionConfig(NamedTuple):
    """Tiles of attention: block_m rows are query tokens times the heads that share a kv head."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    num_splits: int = 1  # of a decode's keys at most, each of at least LEAST_SPLIT


ARCHITECTURES = (80, 90, 100)
RANK_CLASSES = (16, 32, 64, 128, 256)  # tl.dot needs at least 16: smaller ranks are padded
MAX_FEW_TOKENS = 256  # of a step; a longer one has prompts in it, whose runs fill longer chunks
CHUNK_ROWS: dict[TokenBucket, int] = {"few": 16, "many": 64}
_FEW = {
    16: LoraConfig(16, 128, 4, 128, 4, 3),
    32: LoraConfig(16, 128, 4, 128, 4, 3),
    64: LoraConfig(16, 64, 4, 128, 4, 3),
    128: LoraConfig(16, 64, 4, 64, 4, 3),
    256: LoraConfig(16, 32, 4, 64, 8, 3),  # four warps spill on sm_80 with Triton 3.6
}
_MANY = {
    16: LoraConfig(64, 128, 4, 128, 4, 2),
    32: LoraConfig(64, 128, 4, 128, 4, 2),
    64: LoraConfig(64, 64, 4, 128, 4, 3),
    128: LoraConfig(64, 64, 4, 64, 8, 2),
    256: LoraConfig(64, 32, 4, 64, 8, 2),
}
_BY_BUCKET: dict[TokenBucket, dict[int, LoraConfig]] = {"few": _FEW, "many": _MANY}
LORA = {
    LoraKey(architecture, ranks, tokens): config
    for architecture in ARCHITECTURES
    for tokens, configs in _BY_BUCKET.items()
    for ranks, config in configs.items()
}
HEAD_DIMS = (64, 128, 256)
LEAST_SPLIT = (
    256  # keys: below it, adding the parts up costs more than reading them side by side saves
)
DECODE = {
    AttentionKey(architecture, dims): AttentionConfig(16, 64, 4, 2, num_splits=8)
    for architecture in ARCHITECTURES
    for dims in HEAD_DIMS
}
# With four warps, tiles of 64 x 64 spill: 128 dimensions on sm_80, 256 on sm_90
_PREFILL = {
    64: AttentionConfig(64, 64, 4, 2),
    128: AttentionConfig(64, 64, 8, 2),
    256: AttentionConfig(64, 32, 8, 2),
}
PREFILL = {
    AttentionKey(architecture, dims): config
    for architecture in ARCHITECTURES
    for dims, config in _PREFILL.items()
}


@functools.cache
def architecture_of(device: torch.device) -> int:
    """The newest one in the tables that a device can run as; the interpreter's is the first."""
    if device.type != "cuda":
        return ARCHITECTURES[0]
    major, minor = torch.cuda.get_device_capability(device)
    capability = 10 * major + minor
    usable = [known for known in ARCHITECTURES if known <= capability]
    if not usable:
        raise ValueError(f"the kernels need sm_{ARCHITECTURES[0]} or newer, not sm_{capability}")
    return usable[-1]


def token_bucket(num_tokens: int) -> TokenBucket:
    """Of a step with so many tokens."""
    return "few" if num_tokens <= MAX_FEW_TOKENS else "many"


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
