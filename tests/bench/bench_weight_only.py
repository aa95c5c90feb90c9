"""Weight-only int8 and int4 against bfloat16: all products of a decode step, in turns.

OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python tests/bench/bench_weight_only.py

Ours, ATen's kernels for the CPU (what torchao calls or is compiled to), and torchao's modules as they
come, where torchao is installed. Each has weights of its own for every layer, read in the order of a step.
Ratios are of medians: below 1 is faster than our bfloat16. Processor time on one thread, else the wall
clock. "error" is against float32, the bfloat16 rounding of the outputs included.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import NamedTuple

import int4_trial
import torch
import torch.nn.functional as F
from paired import alternate, ratio

from loraplex_kernels.device import has_amx
from loraplex_kernels.linear import int8_layout, linear, pack_weight, quantize
from loraplex_kernels.warm_up import warm_up

BF16 = torch.bfloat16
GROUP = 32
BATCHES = (1, 8, 32)
Product = Callable[[torch.Tensor], torch.Tensor]
Pack = Callable[[torch.Tensor], Product]


class Shape(NamedTuple):
    """The products of a step: [out_features, in_features] of each layer's, and of the last one."""

    layers: int
    layer: tuple[tuple[int, int], ...]
    head: tuple[int, int] | None

    def all(self) -> list[tuple[int, int]]:
        return [*self.layer * self.layers, *([self.head] if self.head else [])]


SHAPES = {
    "SmolLM2-135M": Shape(30, ((960, 576), (576, 576), (3072, 576), (576, 1536)), (49152, 576)),
    "four layers of Llama-3.2-1B": Shape(
        4, ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)), None
    ),
}


def ours(weight: torch.Tensor) -> Product:
    packed = pack_weight(weight)
    return lambda x: linear(x, packed)


def ours_int8(weight: torch.Tensor) -> Product:
    packed = pack_weight(weight, int8_layout(BF16))
    return lambda x: linear(x, packed)


def torch_bfloat16(weight: torch.Tensor) -> Product:
    kept = weight.clone()
    return lambda x: F.linear(x, kept)


def aten_int8(weight: torch.Tensor) -> Product:
    values, scale = quantize(weight)
    scale = scale.to(BF16)
    multiply: Callable[..., torch.Tensor] = torch.ops.aten._weight_int8pack_mm
    return lambda x: multiply(x, values, scale)


def int4_steps(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Groups of 32 of a row from their least number to their largest in 15 steps: number, size, least."""
    groups = weight.float().view(len(weight), -1, GROUP)
    low, high = groups.aminmax(dim=-1, keepdim=True)
    scale = ((high - low) / 15).clamp_min(1e-9)
    steps = ((groups - low) / scale).round().clamp(0, 15)
    return steps.view(weight.shape), scale[..., 0], low[..., 0]


def ours_int4(weight: torch.Tensor) -> Product:
    steps, scale, low = int4_steps(weight)
    return int4_trial.product_of(
        *int4_trial.pack_int4(steps.to(torch.uint8), scale, low), len(weight)
    )


def aten_int4(weight: torch.Tensor) -> Product:
    steps, scale, low = int4_steps(weight)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(steps.to(torch.int32), 1)
    # the kernel subtracts eight steps of its own: what is added is the number in the middle
    places = torch.stack([scale, low + 8 * scale], -1).transpose(0, 1).contiguous().to(BF16)
    multiply: Callable[..., torch.Tensor] = torch.ops.aten._weight_int4pack_mm_for_cpu
    return lambda x: multiply(x, packed, GROUP, places)


def torchao_modules() -> dict[str, Pack]:
    if find_spec("torchao") is None:
        return {}
    from torchao.prototype.quantization.int4 import (  # noqa: PLC0415  # need not be installed
        PrototypeInt4WeightOnlyConfig,
    )
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # noqa: PLC0415  # alike

    def pack(config: object) -> Pack:
        def module(weight: torch.Tensor) -> Product:
            made = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=BF16)
            made.weight.data.copy_(weight)
            holder = torch.nn.Sequential(made)
            quantize_(holder, config)
            return holder

        return module

    int4 = PrototypeInt4WeightOnlyConfig(GROUP, set_inductor_config=False)
    return {"int8, torchao": pack(Int8WeightOnlyConfig()), "int4, torchao": pack(int4)}


def timed(products: list[Product], inputs: dict[int, torch.Tensor], widths: list[int]) -> float:
    """Seconds of one step."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    for product, width in zip(products, widths, strict=True):
        product(inputs[width])
    return clock() - started


def error(pack: Pack, shape: tuple[int, int]) -> float:
    """RMS of a product's error over the RMS of what is right."""
    weight, x = torch.randn(shape).to(BF16), torch.randn(8, shape[1]).to(BF16)
    exact = x.float() @ weight.float().T
    return float((pack(weight)(x).float() - exact).square().mean().sqrt() / exact.std())


def bench(name: str, shape: Shape, rounds: int) -> None:
    systems: dict[str, Pack] = {
        "bfloat16, ours": ours,
        "int8, ours": ours_int8,
        "bfloat16, F.linear": torch_bfloat16,
        "int8, aten": aten_int8,
        "int4, aten": aten_int4,
        **({"int4, trial": ours_int4} if has_amx() else {}),
        **torchao_modules(),
    }
    sizes = shape.all()
    made: dict[str, list[Product]] = {system: [] for system in systems}
    for size in sizes:  # one weight after the other, so that only what is packed stays
        weight = torch.randn(size).to(BF16)
        for system, pack in systems.items():
            made[system].append(pack(weight))
    widths = [in_features for _, in_features in sizes]
    rows: dict[str, list[str]] = {system: [] for system in systems}
    for batch in BATCHES:
        inputs = {width: torch.randn(batch, width).to(BF16) for width in set(widths)}
        works = {
            system: partial(timed, products, inputs, widths) for system, products in made.items()
        }
        seen = alternate(works, rounds)
        for system, seconds in seen.items():
            against = ratio(seconds, seen["bfloat16, ours"])
            rows[system].append(f"{against} ({1e3 * median(seconds):.1f} ms)")
    print(f"\n{name}, load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads")
    print("| |", " | ".join(f"batch {batch}" for batch in BATCHES), "| error |")
    print("|---" * (len(BATCHES) + 2) + "|")
    for system, cells in rows.items():
        print(f"| {system} |", " | ".join(cells), f"| {error(systems[system], sizes[0]):.4f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    args = parser.parse_args()
    warm_up()
    for name, shape in SHAPES.items():
        if args.only in name:
            with torch.inference_mode():
                bench(name, shape, args.rounds)


if __name__ == "__main__":
    main()
