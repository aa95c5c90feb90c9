"""Packed products: the same bits as F.linear, and rows that do not depend on the batch."""

import pytest
import torch

from loraplex_kernels.linear import AMX_ROWS, linear, pack_weight

# SmolLM2-135M's projections, and inner dimensions that oneDNN blocks in other ways
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (1024, 4096), (192, 64), (50, 72))


def cancelling(out_features: int, in_features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A row and a weight whose products almost cancel: what is left is the order of summation."""
    generator = torch.Generator().manual_seed(out_features)
    size = torch.randint(0, 12, (in_features,), generator=generator).float().exp2()
    row = (torch.randn(in_features, generator=generator) * size).bfloat16().float()
    weight = torch.randn(out_features, in_features, generator=generator)
    weight -= torch.outer(weight @ row, row) / (row @ row)
    return row.bfloat16(), weight.bfloat16()


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_rows_do_not_depend_on_the_batch(out_features: int, in_features: int) -> None:
    row, weight = cancelling(out_features, in_features)
    packed = pack_weight(weight)
    alone = linear(row[None], packed)[0]
    for num_rows in [*range(2, 65), 96, 127, 128, 200, 256, 300, 512]:
        together = linear(row.expand(num_rows, -1).contiguous(), packed)
        assert (together == alone).all(), num_rows


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_packed_equals_torch_bit_for_bit(out_features: int, in_features: int) -> None:
    row, weight = cancelling(out_features, in_features)
    packed = pack_weight(weight)
    for num_rows in (2, 5, 16, 31, AMX_ROWS):
        x = row.expand(num_rows, -1).contiguous()
        assert torch.equal(linear(x, packed), torch.nn.functional.linear(x, weight))


def test_float32_is_torch() -> None:
    x, weight = torch.randn(40, 72), torch.randn(50, 72)
    assert torch.equal(linear(x, pack_weight(weight)), torch.nn.functional.linear(x, weight))
