"""The definition of paged attention, in float32."""

import torch


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
    """Causal attention of each sequence's last tokens over its paged keys and values.

    Shapes as in loraplex_kernels.attention.paged_attention.
    """
    out = torch.empty_like(q, dtype=torch.float32)
    num_heads, num_kv_heads, block_size = q.shape[1], k_cache.shape[1], k_cache.shape[2]
    for i, length in enumerate(context_lengths.tolist()):
        first, last = int(query_start[i]), int(query_start[i + 1])
        blocks = block_tables[i, : -(-length // block_size)].long()
        # [num_kv_heads, length, head_dim], repeated for the query heads that share them
        k, v = (
            c[blocks]
            .float()
            .transpose(0, 1)
            .flatten(1, 2)[:, :length]
            .repeat_interleave(num_heads // num_kv_heads, 0)
            for c in (k_cache, v_cache)
        )
        scores = torch.einsum("qhd,hkd->hqk", q[first:last].float(), k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        key = torch.arange(length, device=q.device)[None]
        position = key[0, length - (last - first) :, None]
        hidden = key > position
        if window is not None:
            hidden |= key <= position - window
        scores = scores.masked_fill(hidden, float("-inf"))
        out[first:last] = torch.einsum("hqk,hkd->qhd", scores.softmax(-1), v)
    return out.to(q.dtype)
