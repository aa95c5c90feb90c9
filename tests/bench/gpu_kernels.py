"""Times of the kernels, against the byte floor where memory is the limit."""

from collections.abc import Iterator

import numpy as np
import torch
from tests.bench.gpu_machine import MIXED_RANKS, Machine, paged, slab_of
from tests.bench.gpu_report import Measure, at_least

from loraplex_kernels import activation, attention, lora, norm, sampling
from loraplex_kernels.gpu_configs import CHUNK_ROWS, token_bucket
from loraplex_kernels.lora import build_segments
from loraplex_kernels.work import (
    LAYER_8B,
    Run,
    Work,
    activation_work,
    attention_work,
    lora_work,
    most_likely_work,
    norm_work,
)

LEAST_SHARE = 70.0  # per cent of the byte floor, of grouped LoRA and of paged attention at decode
VOCABULARY = 128256


def time_kernels(machine: Machine) -> Iterator[Measure]:
    """Each kernel's share of the byte floor, per cent, where memory is the limit; else its time."""
    bandwidth = machine.bandwidth()
    yield Measure("kernels", "copy", bandwidth / 1e9, "GB/s")
    floor_s = spent_s = 0.0
    for name, shape in LAYER_8B.items():
        seconds, work = _lora_time(machine, *shape, machine.sizes.streams)
        floor_s += work.num_bytes / bandwidth
        spent_s += seconds
        yield Measure("kernels", f"lora decode {name}, 16 adapters r8-64", seconds * 1e6, "us")
    yield at_least(
        "kernels", "lora decode, a layer of 8B", 100 * floor_s / spent_s, "%", LEAST_SHARE
    )
    seconds, _ = _lora_time(machine, *LAYER_8B["qkv"], machine.sizes.prompt)
    yield Measure("kernels", f"lora qkv, {machine.sizes.prompt} tokens", seconds * 1e6, "us")
    for context in machine.sizes.contexts:
        lengths = [(1, context)] * machine.sizes.streams
        seconds, work = _attention_time(machine, lengths)
        share = 100 * work.num_bytes / bandwidth / seconds
        case = f"attention decode, {len(lengths)} x {context}"
        yield at_least("kernels", case, share, "%", LEAST_SHARE)
    prompt = machine.sizes.prompt
    seconds, work = _attention_time(machine, [(prompt, prompt)])
    yield Measure("kernels", f"attention prefill {prompt}", work.flops / seconds / 1e12, "TFLOP/s")
    yield from _row_times(machine, bandwidth)
    yield from _sampling_times(machine, bandwidth)


def _lora_time(
    machine: Machine, in_features: int, widths: tuple[int, ...], num_tokens: int
) -> tuple[float, Work]:
    shrink_by = machine.sizes.shrink_by
    in_features, widths = in_features // shrink_by, tuple(width // shrink_by for width in widths)
    ranks = MIXED_RANKS * 4
    slab = slab_of(machine, in_features, widths, ranks)
    slots = np.arange(num_tokens, dtype=np.int32) % len(ranks)
    segments = build_segments(slots, CHUNK_ROWS[token_bucket(num_tokens)])
    assert segments is not None
    x, y = machine.randn(num_tokens, in_features), machine.randn(num_tokens, sum(widths))
    seconds = machine.seconds(lambda: lora.apply_lora(y, x, slab, segments))
    runs = [Run(int((slots == slot).sum()), rank) for slot, rank in enumerate(ranks)]
    used = [run for run in runs if run.num_tokens]
    return seconds, lora_work(used, in_features, widths)


def _attention_time(machine: Machine, lengths: list[tuple[int, int]]) -> tuple[float, Work]:
    heads, kv_heads, dim = 32, 8, 128
    cache = paged(machine, lengths, kv_heads, dim)
    q = machine.randn(sum(num_new for num_new, _ in lengths), heads, dim)
    seconds = machine.seconds(lambda: attention.paged_attention(q, *cache, dim**-0.5))
    return seconds, attention_work(lengths, heads, kv_heads, dim)


def _row_times(machine: Machine, bandwidth: float) -> Iterator[Measure]:
    width = 4096 // machine.sizes.shrink_by
    for num_tokens in (machine.sizes.streams, machine.sizes.prompt):
        x, weight = machine.randn(num_tokens, width), machine.randn(width)
        residual, gate_up = machine.randn(num_tokens, width), machine.randn(num_tokens, 7 * width)
        for name, work, call in (
            (
                "norm",
                norm_work(num_tokens, width),
                lambda x=x, w=weight, r=residual: norm.rms_norm(x, w, 1e-5, r),
            ),
            (
                "silu",
                activation_work(num_tokens, gate_up.shape[1] // 2),
                lambda g=gate_up: activation.silu_and_multiply(g),
            ),
        ):
            share = 100 * work.num_bytes / bandwidth / machine.seconds(call)
            yield Measure("kernels", f"{name}, {num_tokens} tokens", share, "%")


def _sampling_times(machine: Machine, bandwidth: float) -> Iterator[Measure]:
    num_rows, vocab_size = machine.sizes.streams, VOCABULARY // machine.sizes.shrink_by
    logits = machine.randn(num_rows, vocab_size)
    seconds = machine.seconds(lambda: sampling.most_likely(logits))
    share = 100 * most_likely_work(num_rows, vocab_size).num_bytes / bandwidth / seconds
    yield Measure("kernels", f"most likely, {num_rows} rows", share, "%")
    scores, weights = logits.float(), logits.float().softmax(-1)
    top_k = torch.full((num_rows,), 50, device=machine.device)
    top_p = torch.full((num_rows,), 0.9, dtype=torch.float64, device=machine.device)

    def draw() -> None:
        sampling.keep_top_k(scores, top_k)
        sampling.keep_top_p(weights, top_p)
        sampling.pick(weights, 0.5 * top_p)

    yield Measure(
        "kernels", f"top-k, top-p, pick, {num_rows} rows", machine.seconds(draw) * 1e6, "us"
    )
