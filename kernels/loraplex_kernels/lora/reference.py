"""The definition of grouped LoRA, in float32."""

import torch

from loraplex_kernels.lora import Slab


def apply_lora(
    y: torch.Tensor, x: torch.Tensor, slab: Slab, token_slots: torch.Tensor
) -> torch.Tensor:
    """y + scale * (x A^T) B for each token's own slot and each slice; slot -1 adds nothing.

    y: [num_tokens, sum(slice_widths)], x: [num_tokens, in_features], token_slots: [num_tokens].
    """
    out = y.float().clone()
    for token, slot in enumerate(token_slots.tolist()):
        column = 0
        for s, width in enumerate(slab.slice_widths):
            rank = int(slab.rank[slot, s]) if slot >= 0 else 0
            if rank:
                a, b = slab.factors(s, slot)  # [rank, in_features], [rank, width]
                out[token, column : column + width] += slab.scale[slot, s] * (
                    x[token].float() @ a.float().T @ b.float()
                )
            column += width
    return out.to(y.dtype)
