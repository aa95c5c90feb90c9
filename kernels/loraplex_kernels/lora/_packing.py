"""The order in which AMX tiles read an adapter's factors: how they lie in the slab, in one stream."""

from collections.abc import Callable

import torch

INNER = 32  # elements that one product sums
COLUMNS = 16  # of one product


def pack_a(a: torch.Tensor) -> torch.Tensor:
    """[ranks, in_features]: of each 16 ranks, or the last few, [in_features / 32, 16 pairs, ranks, 2]."""
    blocks = [
        block.reshape(len(block), -1, INNER // 2, 2).permute(1, 2, 0, 3).reshape(-1)
        for block in torch.split(a, COLUMNS)
    ]
    return torch.cat(blocks).view_as(a)


def pack_b(b: torch.Tensor) -> torch.Tensor:
    """[ranks, width]: of each 32 ranks, or the last few, [width / 16, pairs, 16, 2], then an odd one."""
    blocks = []
    for block in torch.split(b, INNER):
        pairs, width = len(block) // 2, b.shape[1]
        paired = block[: 2 * pairs].reshape(pairs, 2, width // COLUMNS, COLUMNS)
        blocks += [paired.permute(2, 0, 3, 1).reshape(-1), block[2 * pairs :].reshape(-1)]
    return torch.cat(blocks).view_as(b)


def unpacked(factor: torch.Tensor, pack: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The factor that `pack` has made this of."""
    order = pack(torch.arange(factor.numel()).view_as(factor)).flatten()
    plain = torch.empty_like(factor).flatten()
    plain[order] = factor.flatten()
    return plain.view_as(factor)
