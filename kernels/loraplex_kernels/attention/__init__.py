"""Paged attention for prefill chunks and decodes of one step together, and writing keys and values."""

import torch

from loraplex_kernels.attention.companies import Companies, build_companies
from loraplex_kernels.device import has_amx, implementation
from loraplex_kernels.kv_store import rotary_write_kv, write_kv

__all__ = [
    "Companies",
    "build_companies",
    "has_companies",
    "paged_attention",
    "rotary_write_kv",
    "write_kv",
]


def has_companies(cache: torch.Tensor) -> bool:
    """Whether attention over a cache runs on AMX tiles, where companies walk together."""
    is_bf16 = cache.device.type == "cpu" and cache.dtype == torch.bfloat16
    return is_bf16 and cache.shape[3] % 32 == 0 and has_amx()


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
    companies: Companies | None = None,
) -> torch.Tensor:
    """Causal attention of each sequence's new tokens over everything it has in the cache.

    q: [num_tokens, num_heads, head_dim]; caches: [num_blocks, num_kv_heads, block_size, head_dim];
    block_tables: int32 [num_seqs, max_blocks]; query_start: int32 [num_seqs + 1] offsets into q;
    context_lengths: int32 [num_seqs], tokens in the cache with the new ones already written.
    A row of the result does not depend on its neighbours nor on how a prompt was cut into chunks, nor on
    the companies: where tiles serve it, members walk together, and come to the same bits as alone.
    """
    assert q.stride()[1:] == (q.shape[2], 1), "the heads of a token lie side by side"
    assert k_cache.is_contiguous()
    assert v_cache.is_contiguous()
    assert q.shape[1] % k_cache.shape[1] == 0
    assert k_cache.shape[2] % 16 == 0
    assert block_tables.dtype == query_start.dtype == context_lengths.dtype == torch.int32
    out: torch.Tensor
    if has_companies(k_cache) and not softcap:
        out = implementation(__name__, "amx").paged_attention(
            q,
            k_cache,
            v_cache,
            block_tables,
            query_start,
            context_lengths,
            scale,
            window,
            companies,
        )
        return out
    out = implementation(__name__, q.device.type).paged_attention(
        q, k_cache, v_cache, block_tables, query_start, context_lengths, scale, window, softcap
    )
    return out
