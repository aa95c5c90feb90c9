"""Products on AMX tiles: each output sums its inner dimension in one order, whatever the batch."""

import numba
import numpy as np
import torch
import torch.nn.functional as F

from loraplex_kernels._amx import (
    round_16,
    tile_dot,
    tile_load,
    tile_release,
    tile_shapes,
    tile_store,
    tile_zero,
)
from loraplex_kernels._numba import BF16, address_of, keep, kernel, piece, prefetch_rows, store_row
from loraplex_kernels._vector import load, load_int8, store
from loraplex_kernels.memory import dense_zeros

PANEL = 32  # output columns: two tiles, whose weights lie together
INNER = 32  # elements of the inner dimension in one step
STEP_BYTES = PANEL * INNER * 2
INT8_STEP_BYTES = PANEL * INNER
AHEAD_BYTES = 2048  # of the weights: asked for before their time comes

load_left0, load_left1, load_right0, load_right1 = (tile_load(tile) for tile in (4, 5, 6, 7))
store0, store1, store2, store3 = (tile_store(tile) for tile in range(4))
zero_2, zero_4 = tile_zero(0, 1), tile_zero(0, 1, 2, 3)
dot_2 = tile_dot((0, 4, 6), (1, 4, 7))
dot_4 = tile_dot((0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7))


@piece
def _few_rows(x, x_bytes, weight, steps, out):
    zero_2()
    for step in range(steps):
        prefetch_rows(weight + step * STEP_BYTES + AHEAD_BYTES, STEP_BYTES)
        load_right0(weight + step * STEP_BYTES, 64)
        load_right1(weight + step * STEP_BYTES + 1024, 64)
        load_left0(x + step * 64, x_bytes)
        dot_2()
    store0(out, 128)
    store1(out + 64, 128)


@piece
def _many_rows(x, x_bytes, weight, steps, out):
    zero_4()
    for step in range(steps):
        load_right0(weight + step * STEP_BYTES, 64)
        load_right1(weight + step * STEP_BYTES + 1024, 64)
        load_left0(x + step * 64, x_bytes)
        load_left1(x + 16 * x_bytes + step * 64, x_bytes)
        dot_4()
    store0(out, 128)
    store1(out + 64, 128)
    store2(out + 2048, 128)
    store3(out + 2048 + 64, 128)


@piece
def _scale(sums, rows, scale):
    """The sums of each column times its scale."""
    low, high = load(scale), load(scale + 64)
    for row in range(rows):
        place = sums + row * 128
        store(place, load(place) * low)
        store(place + 64, load(place + 64) * high)


@piece
def _panel(x, x_bytes, num_rows, weight, steps, y, y_bytes, width, scratch, scale):
    """All rows times one panel's columns; scale: an address, or 0."""
    sums = address_of(scratch)  # float32 [32, PANEL]
    shaped = 0
    for first in range(0, num_rows, 32):
        rows = min(32, num_rows - first)
        if rows != shaped:
            tile_shapes(min(rows, 16), max(rows - 16, 1))
            shaped = rows
        if rows <= 16:
            _few_rows(x + first * x_bytes, x_bytes, weight, steps, sums)
        else:
            _many_rows(x + first * x_bytes, x_bytes, weight, steps, sums)
        if scale:
            _scale(sums, rows, scale)
        for row in range(rows):
            place = y + (first + row) * y_bytes
            if width == PANEL:
                round_16(place, load(sums + row * 128))
                round_16(place + 32, load(sums + row * 128 + 64))
            else:
                store_row(sums + row * 128, width, place, BF16)


@piece
def _panels(begin, end, x, x_bytes, num_rows, weight, steps, y, y_bytes, out_features):
    scratch = np.empty(32 * PANEL, np.float32)
    for panel in range(begin, end):
        _panel(
            x,
            x_bytes,
            num_rows,
            weight + panel * steps * STEP_BYTES,
            steps,
            y + panel * PANEL * 2,
            y_bytes,
            min(PANEL, out_features - panel * PANEL),
            scratch,
            0,
        )
    tile_release()


@piece
def _widen(values, count, out):
    """int8 to bfloat16, which holds them all."""
    for at in range(0, count, 16):
        round_16(out + 2 * at, load_int8(values + at))


@piece
def _int8_panels(begin, end, x, x_bytes, num_rows, weight, scale, steps, y, y_bytes, out_features):
    scratch = np.empty(32 * PANEL, np.float32)
    wide = np.empty(steps * STEP_BYTES // 4, np.float32)
    panel_weight = address_of(wide)
    for panel in range(begin, end):
        _widen(weight + panel * steps * INT8_STEP_BYTES, steps * INT8_STEP_BYTES, panel_weight)
        _panel(
            x,
            x_bytes,
            num_rows,
            panel_weight,
            steps,
            y + panel * PANEL * 2,
            y_bytes,
            min(PANEL, out_features - panel * PANEL),
            scratch,
            scale + panel * PANEL * 4,
        )
    tile_release()
    keep(wide)


@kernel(f"void({', '.join(['int64'] * 9)})")
def multiply(x, x_bytes, num_rows, weight, steps, y, y_bytes, out_features, threads):
    panels = (out_features + PANEL - 1) // PANEL
    for thread in numba.prange(threads):
        begin, end = panels * thread // threads, panels * (thread + 1) // threads
        _panels(begin, end, x, x_bytes, num_rows, weight, steps, y, y_bytes, out_features)


@kernel(f"void({', '.join(['int64'] * 10)})")
def multiply_int8(x, x_bytes, num_rows, weight, scale, steps, y, y_bytes, out_features, threads):
    panels = (out_features + PANEL - 1) // PANEL
    for thread in numba.prange(threads):
        begin, end = panels * thread // threads, panels * (thread + 1) // threads
        _int8_panels(
            begin, end, x, x_bytes, num_rows, weight, scale, steps, y, y_bytes, out_features
        )


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[out_features, in_features] to panels [panels, steps, 2, 16 pairs, 16 columns, 2], zeros added."""
    out_features, in_features = weight.shape
    padded = F.pad(weight, (0, -in_features % INNER, 0, -out_features % PANEL))
    steps = padded.view(-1, 2, 16, padded.shape[1] // INNER, 16, 2).permute(0, 3, 1, 4, 2, 5)
    return dense_zeros(steps.shape, weight.dtype).copy_(steps)


def product(x: torch.Tensor, panels: torch.Tensor, out_features: int) -> torch.Tensor:
    """x: bfloat16 [num_rows, in_features]; panels: what `pack` made."""
    steps = panels.shape[1]
    x = _in_whole_steps(x)
    y = torch.empty(x.shape[0], out_features, dtype=x.dtype)
    multiply(
        x.data_ptr(),
        x.stride(0) * 2,
        x.shape[0],
        panels.data_ptr(),
        steps,
        y.data_ptr(),
        y.stride(0) * 2,
        out_features,
        numba.get_num_threads(),
    )
    return y


def pack_int8(values: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Panels as of `pack`, and a scale for each of their columns."""
    return pack(values), F.pad(scale, (0, -len(scale) % PANEL))


def product_int8(
    x: torch.Tensor, panels: torch.Tensor, scale: torch.Tensor, out_features: int
) -> torch.Tensor:
    """x: bfloat16 [num_rows, in_features]; panels and scale: what `pack_int8` made."""
    x = _in_whole_steps(x)
    y = torch.empty(x.shape[0], out_features, dtype=x.dtype)
    multiply_int8(
        x.data_ptr(),
        x.stride(0) * 2,
        x.shape[0],
        panels.data_ptr(),
        scale.data_ptr(),
        panels.shape[1],
        y.data_ptr(),
        y.stride(0) * 2,
        out_features,
        numba.get_num_threads(),
    )
    return y


def _in_whole_steps(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] % INNER:
        x = F.pad(x, (0, -x.shape[1] % INNER))
    assert x.stride(1) == 1
    return x
