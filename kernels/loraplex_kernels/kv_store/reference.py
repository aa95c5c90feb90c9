"""The definition of rotary embedding and key/value writing, in float32."""

import torch


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store keys and values [num_tokens, num_kv_heads, head_dim] in their slots."""
    block, offset = slot_mapping // k_cache.shape[2], slot_mapping % k_cache.shape[2]
    k_cache[block, :, offset] = k
    v_cache[block, :, offset] = v


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, half + i) of each head; x: [num_tokens, heads, dim], cos: [num_tokens, half]."""
    half = cos.shape[1]
    first, second, rest = (
        x.float()[..., a:b] for a, b in ((0, half), (half, 2 * half), (2 * half, None))
    )
    c, s = cos[:, None], sin[:, None]
    return torch.cat([first * c - second * s, second * c + first * s, rest], -1).to(x.dtype)


def rotary_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Rotate q in place, store the rotated k and v."""
    q.copy_(rotary(q, cos[positions], sin[positions]))
    write_kv(rotary(k, cos[positions], sin[positions]), v, k_cache, v_cache, slot_mapping)
