"""A kernel that is measured and not shipped: int4 weights, widened panel by panel for AMX tiles.

As int8 is served, with a scale and a least number for each 32 inputs of an output, bfloat16 both.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import ir

from loraplex_kernels._amx import round_16, tile_release
from loraplex_kernels._numba import address_of, kernel, piece
from loraplex_kernels._vector import BYTES, FLOATS, WORDS, _make, fma, i64, load_bf16, vector
from loraplex_kernels.linear._amx import INNER, PANEL, STEP_BYTES, _panel, pack

INT4_STEP_BYTES = PANEL * INNER // 2
SCALE_STEP_BYTES = 2 * PANEL * 2  # a scale and a least number for each column


def _nibbles(builder: Any, address: Any, shift: int) -> Any:
    """One half of 16 bytes as floats."""
    read = builder.load(builder.inttoptr(address, BYTES.as_pointer()), align=1)
    words = builder.lshr(builder.zext(read, WORDS), ir.Constant(WORDS, [shift] * 16))
    return builder.uitofp(builder.and_(words, ir.Constant(WORDS, [15] * 16)), FLOATS)


def _twice(builder: Any, value: Any, first: int) -> Any:
    """Eight lanes, each beside itself: the two inputs of a pair have one scale."""
    order = ir.Constant(WORDS, [first + lane // 2 for lane in range(16)])
    return builder.shuffle_vector(value, value, order)


low_nibbles = _make(vector(i64), lambda builder, at: _nibbles(builder, at, 0))
high_nibbles = _make(vector(i64), lambda builder, at: _nibbles(builder, at, 4))
low_twice = _make(vector(vector), lambda builder, value: _twice(builder, value, 0))
high_twice = _make(vector(vector), lambda builder, value: _twice(builder, value, 8))


@piece
def _widen(values, scales, steps, out):
    for tile in range(2 * steps):
        scale, least = load_bf16(scales + tile * 64), load_bf16(scales + tile * 64 + 32)
        first_scale, first_least = low_twice(scale), low_twice(least)
        second_scale, second_least = high_twice(scale), high_twice(least)
        for pair in range(16):
            at = tile * 16 + pair
            source, target = values + at * 16, out + at * 64
            round_16(target, fma(low_nibbles(source), first_scale, first_least))
            round_16(target + 32, fma(high_nibbles(source), second_scale, second_least))


@piece
def _panels(begin, end, x, x_bytes, num_rows, weight, scales, steps, y, y_bytes, out_features):
    scratch = np.empty(32 * PANEL, np.float32)
    wide = np.empty(steps * STEP_BYTES // 4, np.float32)
    for panel in range(begin, end):
        _widen(
            weight + panel * steps * INT4_STEP_BYTES,
            scales + panel * steps * SCALE_STEP_BYTES,
            steps,
            address_of(wide),
        )
        width, columns = min(PANEL, out_features - panel * PANEL), y + panel * PANEL * 2
        _panel(
            x, x_bytes, num_rows, address_of(wide), steps, columns, y_bytes, width, scratch, 0
        )  # fmt: skip
    tile_release()


@kernel(f"void({', '.join(['int64'] * 10)})")
def multiply_int4(x, x_bytes, num_rows, weight, scales, steps, y, y_bytes, out_features, threads):
    panels = (out_features + PANEL - 1) // PANEL
    for thread in numba.prange(threads):
        begin, end = panels * thread // threads, panels * (thread + 1) // threads
        _panels(
            begin, end, x, x_bytes, num_rows, weight, scales, steps, y, y_bytes, out_features
        )  # fmt: skip


def pack_int4(
    steps: torch.Tensor, scale: torch.Tensor, least: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 steps [out_features, in_features]; the others [out_features, groups]."""
    halves = pack(steps).flatten(-2)  # [panels, groups, 2 tiles, 16 pairs, 32]
    values = (halves[..., :16] | halves[..., 16:] << 4).contiguous()
    both = torch.stack([scale, least]).to(torch.bfloat16)  # [2, out_features, groups]
    both = F.pad(both, (0, 0, 0, -both.shape[1] % PANEL)).view(2, -1, 2, 16, both.shape[2])
    return values, both.permute(1, 4, 2, 0, 3).contiguous()  # [panels, groups, tile, 2, 16]


def product_of(
    values: torch.Tensor, scales: torch.Tensor, out_features: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    def product(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(len(x), out_features, dtype=x.dtype)
        multiply_int4(x.data_ptr(), x.stride(0) * 2, len(x), values.data_ptr(), scales.data_ptr(),
                      values.shape[1], y.data_ptr(), y.stride(0) * 2, out_features,
                      numba.get_num_threads())  # fmt: skip
        return y

    return product
