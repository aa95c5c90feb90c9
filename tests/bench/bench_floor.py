"""The least time in which this machine could serve each workload: tokens per second that nobody can pass.

OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 NUMBA_NUM_THREADS=2 \\
    python tests/bench/bench_floor.py

Measures SmolLM2's matrix products at each batch size, by our kernel and by torch's own, over weights that no
cache holds, and a plain read of memory. Counts, of the quicker one: every prompt token that no prefix cache
can know, at the rate of 512 rows; a step for every token of the running sequences, 32 at most, with their
keys and values read once. Nothing else: no LoRA, no attention but that reading, no norm, no host.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from bench_kernels_cpu import BF16, DIM, KV_HEADS, LAYERS, PROJECTIONS
from workload import Request, load

from loraplex_kernels.linear import linear, pack_weight
from loraplex_kernels.warm_up import warm_up

HIDDEN, VOCABULARY = 576, 49152
BATCHES = (1, 2, 4, 8, 16, 32)
CHUNK, MAX_RUNNING, REPEATS = 512, 32, 5
KV_BYTES = LAYERS * 2 * KV_HEADS * DIM * 2  # of one token
READ_BYTES = 2**30
SYSTEM_PROMPT_TOKENS = {"w3": 512}  # of each tenant; somebody has to compute them once


class Costs(NamedTuple):
    """Seconds of products: of a step, by its sequences; of a prompt token; and of a byte read."""

    step_s: dict[int, float]
    prompt_token_s: float
    byte_s: float


def seconds(work: Callable[[], object]) -> float:
    work()
    seen = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        seen.append(time.perf_counter() - began)
    return median(seen)


def measured() -> Costs:
    shapes = [(sum(widths), width) for width, widths in PROJECTIONS.values()] * LAYERS
    plain = [torch.randn(shape).to(BF16) for shape in [*shapes, (VOCABULARY, HIDDEN)]]
    packed = [pack_weight(weight) for weight in plain]

    def products(rows: int, count: int) -> float:
        """Of the first weights; by the quicker way."""
        inputs = {w.shape[1]: torch.randn(rows, w.shape[1]).to(BF16) for w in plain}
        ours = [(inputs[w.in_features], w) for w in packed[:count]]
        torchs = [(inputs[w.shape[1]], w) for w in plain[:count]]
        by_us = seconds(lambda: [linear(x, w) for x, w in ours])
        by_torch = seconds(lambda: [F.linear(x, w) for x, w in torchs])
        print(f"{rows:4} rows: {by_us * 1e3:6.1f} ms, torch {by_torch * 1e3:6.1f} ms", flush=True)
        return min(by_us, by_torch)

    step_s = {rows: products(rows, len(plain)) for rows in BATCHES}
    prompt_s = products(CHUNK, len(shapes)) / CHUNK
    memory = torch.ones(READ_BYTES // 4)
    read_s = seconds(memory.sum)
    print(f"{torch.get_num_threads()} threads; a plain read: {READ_BYTES / read_s / 1e9:.1f} GB/s")
    return Costs(step_s, prompt_s, read_s / READ_BYTES)


def floor(requests: list[Request], prompt_tokens: int, costs: Costs) -> float:
    """Seconds."""
    total = prompt_tokens * costs.prompt_token_s
    waiting = [(len(r.prompt_ids), r.max_tokens) for r in requests]
    running: list[tuple[int, int]] = []
    while waiting or running:
        while waiting and len(running) < MAX_RUNNING:
            running.append(waiting.pop(0))
        known = sum(context for context, _ in running)
        products_s = np.interp(len(running), list(costs.step_s), list(costs.step_s.values()))
        total += float(products_s) + known * KV_BYTES * costs.byte_s
        running = [(context + 1, left - 1) for context, left in running if left > 1]
    return total


def main() -> None:
    warm_up()
    costs = measured()
    for name in ("w1", "w3"):
        requests = load(name)
        prompts = sum(len(r.prompt_ids) for r in requests)
        output = sum(r.max_tokens for r in requests)
        length = SYSTEM_PROMPT_TOKENS.get(name, 0)
        prefixes = len({r.adapter for r in requests})
        tails = prompts - len(requests) * length
        kinds = (
            {"": prompts} if not length else {" cold": tails + prefixes * length, " warm": tails}
        )
        for kind, prompt_tokens in kinds.items():
            least_s = floor(requests, prompt_tokens, costs)
            print(f"{name}{kind}: {least_s:.1f} s, {output / least_s:.0f} tokens/s")


if __name__ == "__main__":
    main()
