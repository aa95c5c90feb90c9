"""Writing the keys and values of a step into the paged cache, rotated or as they are."""

import torch

from loraplex_kernels.device import implementation

__all__ = ["rotary_write_kv", "write_kv"]


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
    """Rotate q in place (neox pairs) and store the rotated k, and v, in the cache.

    q, k, v: [num_tokens, heads, head_dim], usually views of one fused tensor; cos, sin: float32
    [max_positions, rotary_dim / 2]; positions, slot_mapping: int64 [num_tokens].
    """
    assert cos.dtype == sin.dtype == torch.float32
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    assert positions.dtype == slot_mapping.dtype == torch.int64
    assert all(x.stride(2) == 1 and x.stride(1) == x.shape[2] for x in (q, k, v))
    implementation(__name__, q.device.type).rotary_write_kv(
        q, k, v, cos, sin, positions, k_cache, v_cache, slot_mapping
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
    implementation(__name__, k.device.type).write_kv(k, v, k_cache, v_cache, slot_mapping)
