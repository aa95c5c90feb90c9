"""Packed products: close to F.linear, and rows that do not depend on the batch."""

import pytest
import torch
import torch.nn.functional as F

from loraplex_kernels.device import has_amx
from loraplex_kernels.linear import Layout, int8_layout, linear, pack_weight, quantize
from loraplex_kernels.testing import assert_close

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


# oneDNN's rows agree up to 32 where it uses AMX, which is why it is not what serves there.
LAYOUTS: list[tuple[Layout, int]] = [("onednn", 32 if has_amx() else 512), ("int8", 40)]
if has_amx():
    LAYOUTS += [("amx", 512), ("int8_amx", 512)]


@pytest.mark.parametrize(("layout", "most_rows"), LAYOUTS)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_rows_do_not_depend_on_the_batch(
    out_features: int, in_features: int, layout: Layout, most_rows: int
) -> None:
    row, weight = cancelling(out_features, in_features)
    packed = pack_weight(weight, layout)
    alone = linear(row[None], packed)[0]
    for num_rows in [*range(2, 65), 96, 127, 128, 200, 256, 300, 512]:
        if num_rows <= most_rows:
            together = linear(row.expand(num_rows, -1).contiguous(), packed)
            assert (together == alone).all(), num_rows


@pytest.mark.parametrize("layout", [layout for layout, _ in LAYOUTS])
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_all_rows_are_right(out_features: int, in_features: int, layout: Layout) -> None:
    weight = torch.randn(out_features, in_features).bfloat16()
    packed = pack_weight(weight, layout)
    for num_rows in (1, 5, 16, 31, 63):
        fused = torch.randn(num_rows, in_features + 8).bfloat16()
        x = fused[:, :in_features]  # rows that do not lie side by side
        assert_close(linear(x, packed), F.linear(x.float(), held(weight, layout)), torch.bfloat16)


def held(weight: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The numbers that a packed weight stands for."""
    if not layout.startswith("int8"):
        return weight.float()
    values, scale = quantize(weight)
    return values.float() * scale[:, None]


def test_int8_is_to_the_nearest_of_255_steps() -> None:
    weight = torch.randn(5000, 40)
    weight[7] = 0
    error = (held(weight, "int8") - weight).abs()
    assert (error <= weight.abs().amax(1, keepdim=True) / 254 * 1.001).all()
    assert (held(weight, "int8")[7] == 0).all()


def test_int8_takes_half_the_memory_of_bfloat16() -> None:
    weight = torch.randn(1024, 512).bfloat16()
    layouts: list[Layout] = ["int8", "int8_amx"] if has_amx() else ["int8"]
    for layout in layouts:
        assert pack_weight(weight, layout).num_bytes < 0.51 * weight.nbytes


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_int8_serves_float32(out_features: int, in_features: int) -> None:
    weight, x = torch.randn(out_features, in_features), torch.randn(9, in_features)
    assert int8_layout(torch.float32) == "int8"
    expected = F.linear(x, held(weight, "int8"))
    assert_close(linear(x, pack_weight(weight, "int8")), expected, torch.float32)


@pytest.mark.skipif(not has_amx(), reason="the CPU has no AMX tiles")
def test_amx_serves_where_it_can() -> None:
    assert pack_weight(torch.zeros(64, 64).bfloat16()).layout == "amx"


def test_float32_is_torch() -> None:
    x, weight = torch.randn(40, 72), torch.randn(50, 72)
    assert torch.equal(linear(x, pack_weight(weight)), F.linear(x, weight))
