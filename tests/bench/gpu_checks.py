"""Shipped configurations of the kernels against their definitions, in the type that they serve in."""

from collections.abc import Iterator
from itertools import chain

import torch
from tests.bench.gpu_machine import Machine, paged, slab_of
from tests.bench.gpu_report import Measure, at_most

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
from loraplex_kernels.lora import build_segments
from loraplex_kernels.lora import reference as lora_reference
from loraplex_kernels.norm import reference as norm_reference
from loraplex_kernels.sampling import reference as sampling_reference
from loraplex_kernels.testing import RMS_TOLERANCE, poisoned_memory, rms_error, token_slots


def check_kernels(machine: Machine) -> Iterator[Measure]:
    """Errors of all configurations that this GPU may launch: fresh random inputs, poisoned outputs."""
    limit = RMS_TOLERANCE[machine.dtype]
    checks = (_lora_errors, _attention_errors, _row_errors, _rotary_errors, _sampling_errors)
    for case, error in chain.from_iterable(check(machine) for check in checks):
        yield at_most("correctness", case, error, "rms", limit)


def _lora_errors(machine: Machine) -> Iterator[tuple[str, float]]:
    in_features = 160
    for ranks in RANK_CLASSES:
        for widths, mix, num_tokens in (
            ((1920, 640, 640), "one", 1),  # wide: few elements would be noise
            ((80, 80), "different", 63),
            ((160,), "random", 200),
            ((96, 32, 32), "one", MAX_FEW_TOKENS + 9),
            ((80, 80), "different", MAX_FEW_TOKENS + 20),
            ((160,), "random", MAX_FEW_TOKENS + 44),
        ):
            slab = slab_of(machine, in_features, widths, (ranks, ranks - 1, 4, 1, ranks // 2))
            x, y = machine.randn(num_tokens, in_features), machine.randn(num_tokens, sum(widths))
            slots = token_slots(mix, num_tokens, 5, seed=num_tokens)
            expected = lora_reference.apply_lora(y.float(), x, slab, torch.from_numpy(slots))
            bucket = token_bucket(num_tokens)
            segments = build_segments(slots, CHUNK_ROWS[bucket])
            assert segments is not None
            with poisoned_memory():
                lora.apply_lora(y, x, slab, segments)
            case = f"lora r{ranks} {bucket}, {len(widths)} slices, {num_tokens} tokens {mix}"
            yield case, rms_error(y, expected)


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
                with poisoned_memory():
                    found = attention.paged_attention(q, *arguments)
                yield f"{phase} d{dim} window {window} cap {softcap}", rms_error(found, expected)


def _row_errors(machine: Machine) -> Iterator[tuple[str, float]]:
    x, weight, residual = (machine.randn(*shape) for shape in ((63, 320), (320,), (63, 320)))
    mine, theirs = residual.clone(), residual.clone()
    expected = norm_reference.rms_norm(x, weight, 1e-5, theirs)
    with poisoned_memory():
        found = norm.rms_norm(x, weight, 1e-5, mine)
    yield "norm", rms_error(found, expected)
    yield "norm's residual", rms_error(mine, theirs)
    for name in ("silu_and_multiply", "gelu_tanh_and_multiply"):
        expected = getattr(activation_reference, name)(x.float())
        with poisoned_memory():
            found = getattr(activation, name)(x)
        yield name, rms_error(found, expected)


def _rotary_errors(machine: Machine) -> Iterator[tuple[str, float]]:
    """It writes in place alone."""
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


def _sampling_errors(machine: Machine) -> Iterator[tuple[str, float]]:
    """Shares of rows that differ: which token it is, and what a limit keeps, is right or wrong."""
    num_rows, device = 64, machine.device
    logits = machine.randn(num_rows, 5000)  # many are equal
    uniform = torch.rand(num_rows, dtype=torch.float64, device=device)
    top_k = torch.arange(num_rows, device=device)
    top_p = torch.linspace(0.02, 1.2, num_rows, dtype=torch.float64, device=device)
    scores, weights = logits.float(), logits.float().softmax(-1)
    wanted_scores, wanted_weights = scores.cpu(), weights.cpu()
    sampling_reference.keep_top_k(wanted_scores, top_k.cpu())
    sampling_reference.keep_top_p(wanted_weights, top_p.cpu())
    with poisoned_memory():
        likely = sampling.most_likely(logits)
        sampling.keep_top_k(scores, top_k)
        sampling.keep_top_p(weights, top_p)
        drawn = sampling.pick(weights, uniform)
    for case, found, wanted in (
        ("most likely", likely, sampling_reference.most_likely(logits.cpu())),
        ("top-k", scores, wanted_scores),
        ("top-p", weights, wanted_weights),
        ("pick", drawn, sampling_reference.pick(wanted_weights, uniform.cpu())),
    ):
        is_other = (found.cpu() != wanted).reshape(num_rows, -1).any(1)
        yield case, float(is_other.double().mean())
