"""Shipped configurations of the kernels against their definitions, and their times against the byte floor."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from tests.bench.gpu_report import Measure, at_least, at_most

from loraplex_kernels import activation, attention, kv_store, lora, norm, sampling
from loraplex_kernels.activation import reference as activation_reference
from loraplex_kernels.attention import reference as attention_reference
from loraplex_kernels.gpu_configs import (
    CHUNK_ROWS,
    HEAD_DIMS,
    MAX_FEW_TOKENS,
    RANK_CLASSES,
    token_bucket,
)
from loraplex_kernels.kv_store import reference as kv_reference
from loraplex_kernels.lora import LoraSlab, build_segments
from loraplex_kernels.lora import reference as lora_reference
from loraplex_kernels.norm import reference as norm_reference
from loraplex_kernels.sampling import reference as sampling_reference
from loraplex_kernels.testing import RMS_TOLERANCE, rms_error, token_slots
from loraplex_kernels.work import Run, Work, activation_work, attention_work, lora_work, norm_work

LEAST_SHARE = 70.0  # per cent of the byte floor, of grouped LoRA and of paged attention at decode
LAYER = {  # of Llama-3-8B: input features, slices
    "qkv": (4096, (4096, 1024, 1024)),
    "o": (4096, (4096,)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}
MIXED_RANKS = (8, 16, 32, 64)


class Sizes(NamedTuple):
    """How much is measured; a rehearsal takes little."""

    shrink_by: int = 1  # of layers' widths
    copied_bytes: int = 2**30
    cold_bytes: int = 2**29  # written before each call: more than any cache
    repeats: int = 15
    streams: int = 64
    contexts: tuple[int, ...] = (1024, 8192)
    prompt: int = 2048


REHEARSAL = Sizes(
    shrink_by=32,
    copied_bytes=2**20,
    cold_bytes=2**16,
    repeats=2,
    streams=4,
    contexts=(40,),
    prompt=48,
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is measured on, and how."""

    device: torch.device
    sizes: Sizes
    dtype: torch.dtype = torch.bfloat16

    def seconds(self, work: Callable[[], object]) -> float:
        """Median of a call that finds nothing in the caches, after one that compiles."""
        work()
        cold = torch.empty(self.sizes.cold_bytes, dtype=torch.uint8, device=self.device)
        times = []
        for _ in range(self.sizes.repeats):
            cold.zero_()
            times.append(self._timed(work))
        return statistics.median(times)

    def _timed(self, work: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            started_s = time.perf_counter()
            work()
            return time.perf_counter() - started_s
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def bandwidth(self) -> float:
        """Bytes a second that a plain copy reads and writes, the byte floor's measure."""
        source = torch.ones(self.sizes.copied_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.seconds(lambda: target.copy_(source))

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)


def check_kernels(machine: Machine) -> Iterator[Measure]:
    """Errors of all configurations that this GPU may launch, on fresh random inputs."""
    limit = RMS_TOLERANCE[machine.dtype]
    for case, error in (*_lora_errors(machine), *_attention_errors(machine), *_row_errors(machine)):
        yield at_most("correctness", case, error, "rms", limit)


def slab_of(
    machine: Machine, in_features: int, widths: tuple[int, ...], ranks: tuple[int, ...]
) -> LoraSlab:
    starts = torch.tensor([0, *np.cumsum(ranks)[:-1]], dtype=torch.int32, device=machine.device)
    slab = LoraSlab.empty(
        in_features, widths, sum(ranks), starts, machine.dtype, max_rank=max(ranks)
    )
    slab.a.normal_().mul_(in_features**-0.5)
    for b in slab.b:
        b.normal_()
    each = torch.tensor(ranks, dtype=torch.int32, device=machine.device)
    slab.rank.copy_(each[:, None].expand_as(slab.rank))
    slab.scale.uniform_(0.5, 2.0)
    return slab


def _lora_errors(machine: Machine) -> Iterator[tuple[str, float]]:
    widths, in_features = (96, 32, 32), 160
    for ranks in RANK_CLASSES:
        slab = slab_of(machine, in_features, widths, (ranks, ranks - 1, 4, 1, ranks // 2))
        for mix, num_tokens in (
            ("one", 1),
            ("different", 63),
            ("random", 200),
            ("one", MAX_FEW_TOKENS + 9),
            ("random", MAX_FEW_TOKENS + 44),
        ):
            x, y = machine.randn(num_tokens, in_features), machine.randn(num_tokens, sum(widths))
            slots = token_slots(mix, num_tokens, 5, seed=num_tokens)
            expected = lora_reference.apply_lora(y.float(), x, slab, torch.from_numpy(slots))
            bucket = token_bucket(num_tokens)
            segments = build_segments(slots, CHUNK_ROWS[bucket])
            assert segments is not None
            lora.apply_lora(y, x, slab, segments)
            yield f"lora r{ranks} {bucket}, {num_tokens} tokens {mix}", rms_error(y, expected)


class Paged(NamedTuple):
    """A cache with something in it."""

    k: torch.Tensor
    v: torch.Tensor
    tables: torch.Tensor
    starts: torch.Tensor
    contexts: torch.Tensor


def paged(machine: Machine, lengths: list[tuple[int, int]], kv_heads: int, dim: int) -> Paged:
    """For (new tokens, context) of each sequence; blocks of nobody are NaN."""
    width = max(-(-context // 16) for _, context in lengths)
    num_blocks = len(lengths) * width
    shape = (num_blocks + 1, kv_heads, 16, dim)
    k, v = (torch.full(shape, float("nan"), device=machine.device) for _ in range(2))
    tables = torch.randperm(num_blocks)[: len(lengths) * width].view(len(lengths), width)
    for i, (_, context) in enumerate(lengths):
        mine = tables[i, : -(-context // 16)]
        for cache in (k, v):
            cache[mine] = torch.randn(len(mine), *shape[1:], device=machine.device)
    starts = np.cumsum([0, *(num_new for num_new, _ in lengths)])
    return Paged(
        k.to(machine.dtype),
        v.to(machine.dtype),
        tables.to(machine.device, torch.int32),
        torch.tensor(starts, dtype=torch.int32, device=machine.device),
        torch.tensor([c for _, c in lengths], dtype=torch.int32, device=machine.device),
    )


def _attention_errors(machine: Machine) -> Iterator[tuple[str, float]]:
    steps = {
        "decode": [(1, 1), (1, 37), (1, 300), (1, 700)],
        "prefill": [(5, 5), (1, 18), (150, 333)],
    }
    for dim in HEAD_DIMS:
        for phase, lengths in steps.items():
            for window, softcap in ((None, None), (45, None), (None, 5.0)):
                cache = paged(machine, lengths, 2, dim)
                q = machine.randn(sum(n for n, _ in lengths), 6, dim)
                arguments = (*cache, dim**-0.5, window, softcap)
                expected = attention_reference.paged_attention(q.float(), *arguments)
                found = attention.paged_attention(q, *arguments)
                yield f"{phase} d{dim} window {window} cap {softcap}", rms_error(found, expected)


def _row_errors(machine: Machine) -> Iterator[tuple[str, float]]:
    x, weight, residual = (machine.randn(*shape) for shape in ((63, 320), (320,), (63, 320)))
    mine, theirs = residual.clone(), residual.clone()
    expected = norm_reference.rms_norm(x, weight, 1e-5, theirs)
    yield "norm", rms_error(norm.rms_norm(x, weight, 1e-5, mine), expected)
    yield "norm's residual", rms_error(mine, theirs)
    for name in ("silu_and_multiply", "gelu_tanh_and_multiply"):
        expected = getattr(activation_reference, name)(x.float())
        yield name, rms_error(getattr(activation, name)(x), expected)
    angle = torch.rand(100, 32, device=machine.device) * 6
    positions, slots = (torch.randperm(96, device=machine.device)[:63] for _ in range(2))
    qkv = machine.randn(63, 10, 64)
    outcomes = []
    for function in (kv_store.rotary_write_kv, kv_reference.rotary_write_kv):
        q, k, v = qkv.clone().split([6, 2, 2], 1)
        caches = [
            torch.zeros(6, 2, 16, 64, dtype=machine.dtype, device=machine.device) for _ in range(2)
        ]
        function(q, k, v, angle.cos(), angle.sin(), positions, *caches, slots)
        outcomes.append((q, *caches))
    for name, found, wanted in zip(("q", "k", "v"), *outcomes, strict=True):
        yield f"rotary's {name}", rms_error(found, wanted)

    weights = torch.rand(16, 5000, device=machine.device)
    uniform = torch.rand(16, dtype=torch.float64, device=machine.device)
    found, wanted = sampling.pick(weights, uniform), sampling_reference.pick(weights, uniform)
    yield "pick", rms_error(found, wanted)


def time_kernels(machine: Machine) -> Iterator[Measure]:
    """Each kernel's share of the byte floor, per cent, where memory is the limit; else its time."""
    bandwidth = machine.bandwidth()
    yield Measure("kernels", "copy", bandwidth / 1e9, "GB/s")
    floor_s = spent_s = 0.0
    for name, shape in LAYER.items():
        seconds, work = _lora_time(machine, *shape, machine.sizes.streams)
        floor_s += work.num_bytes / bandwidth
        spent_s += seconds
        yield Measure("kernels", f"lora decode {name}, 16 adapters r8-64", seconds * 1e6, "us")
    yield at_least(
        "kernels", "lora decode, a layer of 8B", 100 * floor_s / spent_s, "%", LEAST_SHARE
    )
    seconds, _ = _lora_time(machine, *LAYER["qkv"], machine.sizes.prompt)
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
