"""Paged attention for prefill chunks and decodes of one step together, and writing keys and values."""

import torch

from loraplex_kernels.attention import reference

__all__ = ["paged_attention", "write_kv"]


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start: torch.Tensor,
    context_lengths: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Causal attention of each sequence's new tokens over everything it has in the cache.

    q: [num_tokens, num_heads, head_dim]; caches: [num_blocks, num_kv_heads, block_size, head_dim];
    block_tables: int32 [num_seqs, max_blocks]; query_start: int32 [num_seqs + 1] offsets into q;
    context_lengths: int32 [num_seqs], tokens in the cache with the new ones already written.
    A row of the result does not depend on its neighbours nor on how a prompt was cut into chunks.
    """
    return reference.paged_attention(
        q, k_cache, v_cache, block_tables, query_start, context_lengths, scale, window, softcap
    )


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store new keys and values; slot_mapping: int64 [num_tokens] = block * block_size + offset.

    k, v: [num_tokens, num_kv_heads, head_dim].
    """
    block, offset = slot_mapping // k_cache.shape[2], slot_mapping % k_cache.shape[2]
    k_cache[block, :, offset] = k
    v_cache[block, :, offset] = v
