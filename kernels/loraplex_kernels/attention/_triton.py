"""Paged attention on the GPU: one kernel for steps with prompts in them, one for decodes alone."""

import torch

from loraplex_kernels.attention._decode import decode_attention
from loraplex_kernels.attention._prefill import prefill_attention
from loraplex_kernels.gpu_configs import (
    DECODE,
    PREFILL,
    AttentionConfig,
    AttentionKey,
    architecture_of,
    head_dim_class,
)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lengths: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    config: AttentionConfig | None = None,
) -> torch.Tensor:
    """As loraplex_kernels.attention.paged_attention, on the GPU."""
    is_decode = len(q) == len(context_lengths)
    key = AttentionKey(architecture_of(q.device), head_dim_class(q.shape[2]))
    config = config or (DECODE if is_decode else PREFILL)[key]
    shape, last = (q, k_cache, v_cache, block_tables), (scale, window, softcap, config)
    if is_decode:
        return decode_attention(*shape, context_lengths, *last)
    return prefill_attention(*shape, query_start, context_lengths, *last)
