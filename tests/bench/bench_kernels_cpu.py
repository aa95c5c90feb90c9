"""CPU kernels at the shapes of SmolLM2-135M, with cold weights and pages (30 layers of them).

OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python tests/bench/bench_kernels_cpu.py
On one thread the processor time is taken, so a busy machine disturbs it less; else the wall clock.
"""

import time
from collections.abc import Callable
from functools import partial

import numba
import numpy as np
import torch

from loraplex_adapters.extras import LoraFactors
from loraplex_adapters.layout import ProjectionSpec, SliceSpec
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.slabs import DeviceSlabs
from loraplex_kernels.activation import silu_and_multiply
from loraplex_kernels.attention import paged_attention, rotary_write_kv
from loraplex_kernels.linear import PackedWeight, linear, pack_weight
from loraplex_kernels.lora import LoraSegments, Slab, apply_lora, build_segments
from loraplex_kernels.norm import rms_norm
from loraplex_kernels.warm_up import warm_up

LAYERS, HEADS, KV_HEADS, DIM, PAGE, REPEATS = 30, 9, 3, 64, 16, 5
PROJECTIONS = {
    "qkv": (576, (576, 192, 192)),
    "o": (576, (576,)),
    "gate_up": (576, (1536, 1536)),
    "down": (1536, (576,)),
}
BF16 = torch.bfloat16


def layer_ms(work: Callable[[int], object]) -> float:
    """The quickest of a few passes over all layers, for one layer."""
    clock = time.thread_time if numba.get_num_threads() == 1 else time.perf_counter
    passes = []
    for _ in range(REPEATS):
        begin = clock()
        for layer in range(LAYERS):
            work(layer)
        passes.append(clock() - begin)
    return min(passes) / LAYERS * 1e3


def report(what: str, ms: float, num_bytes: int | None = None) -> None:
    rate = "" if num_bytes is None else f"{num_bytes / ms / 1e6:8.1f} GB/s"
    print(f"{what:44} {ms:8.3f} ms a layer {rate}")


def bench_attention(what: str, num_seqs: int, new: int, context: int) -> None:
    pages = -(-context // PAGE)
    tables = torch.randperm(num_seqs * pages).view(num_seqs, pages).to(torch.int32)
    caches = [torch.randn(LAYERS, num_seqs * pages, KV_HEADS, PAGE, DIM).to(BF16) for _ in range(2)]
    q = torch.randn(num_seqs * new, HEADS, DIM).to(BF16)
    starts = torch.arange(num_seqs + 1, dtype=torch.int32) * new
    lengths = torch.full((num_seqs,), context, dtype=torch.int32)
    ms = layer_ms(
        lambda i: paged_attention(q, caches[0][i], caches[1][i], tables, starts, lengths, 0.125)
    )
    report(what, ms, 2 * caches[0][0].nbytes if new == 1 else None)


def filled_slabs(num_adapters: int, rank: int) -> DeviceSlabs:
    layout = [
        ProjectionSpec(
            f"{layer}.{name}",
            in_features,
            tuple(SliceSpec(f"{layer}.{name}.{i}", width) for i, width in enumerate(widths)),
        )
        for layer in range(LAYERS)
        for name, (in_features, widths) in PROJECTIONS.items()
    ]
    slabs = DeviceSlabs(
        layout,
        num_slots=num_adapters,
        num_rows=num_adapters * rank,
        dtype=BF16,
        device=torch.device("cpu"),
    )
    for slot in range(num_adapters):
        modules = {
            piece.module: LoraFactors(
                torch.randn(rank, each.in_features).to(BF16),
                torch.randn(rank, piece.out_features).to(BF16),
                1.0,
            )
            for each in layout
            for piece in each.slices
        }
        placed = slabs.write(AdapterWeights(modules), slot * rank, None)
        slabs.publish(slot, slot * rank, placed)
    return slabs


def apply_to_layer(
    layers: list[Slab], x: torch.Tensor, y: torch.Tensor, segments: LoraSegments, layer: int
) -> None:
    apply_lora(y, x, layers[layer], segments)


def multiply_layer(weights: list[PackedWeight], x: torch.Tensor, layer: int) -> torch.Tensor:
    return linear(x, weights[layer])


def bench_lora(num_tokens: int, num_adapters: int, rank: int = 16) -> None:
    slots = (np.arange(num_tokens) % num_adapters).astype(np.int32)
    segments = build_segments(slots)
    assert segments is not None
    slabs = filled_slabs(num_adapters, rank).slabs
    for name, (in_features, widths) in PROJECTIONS.items():
        x = torch.randn(num_tokens, in_features).to(BF16)
        y = torch.randn(num_tokens, sum(widths)).to(BF16)
        layers = [slabs[f"{layer}.{name}"] for layer in range(LAYERS)]
        ms = layer_ms(partial(apply_to_layer, layers, x, y, segments))
        num_bytes = 2 * num_adapters * rank * (len(widths) * in_features + sum(widths))
        report(f"lora {name}, {num_tokens} tokens, {num_adapters} of rank {rank}", ms, num_bytes)


def bench_rest(num_tokens: int) -> None:
    for name, (in_features, widths) in PROJECTIONS.items():
        shape = (sum(widths), in_features)
        weights = [pack_weight(torch.randn(shape).to(BF16)) for _ in range(LAYERS)]
        x = torch.randn(num_tokens, in_features).to(BF16)
        ms = layer_ms(partial(multiply_layer, weights, x))
        report(f"product {name}, {num_tokens} rows", ms)
    x, weight = torch.randn(num_tokens, 576).to(BF16), torch.ones(576).to(BF16)
    residual, gate_up = x.clone(), torch.randn(num_tokens, 3072).to(BF16)
    report(f"norm, {num_tokens} rows", layer_ms(lambda _: rms_norm(x, weight, 1e-5, residual)))
    report(f"activation, {num_tokens} rows", layer_ms(lambda _: silu_and_multiply(gate_up)))
    qkv = torch.randn(num_tokens, HEADS + 2 * KV_HEADS, DIM).to(BF16)
    q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
    caches = [torch.zeros(num_tokens, KV_HEADS, PAGE, DIM, dtype=BF16) for _ in range(2)]
    angle, places = torch.rand(num_tokens, DIM // 2), torch.arange(num_tokens)
    ms = layer_ms(
        lambda _: rotary_write_kv(q, k, v, angle.cos(), angle.sin(), places, *caches, places)
    )
    report(f"rotary and cache, {num_tokens} rows", ms)


def main() -> None:
    warm_up()
    bench_attention("attention, decode 32 x 384, cold", 32, 1, 384)
    bench_attention("attention, prefill 512", 1, 512, 512)
    bench_lora(32, 16)
    bench_lora(512, 1)
    bench_lora(512, 4, rank=32)
    for num_rows in (1, 32, 512):
        bench_rest(num_rows)


if __name__ == "__main__":
    main()
