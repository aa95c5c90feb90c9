"""The first steps of an engine, timed before anybody waits: the first plans then know their length."""

import math
import time
from collections.abc import Callable
from typing import Any

from loraplex_engine.device import Device, LayerKv
from loraplex_engine.messages import SamplingParams
from loraplex_engine.prefix_cache import PagedKv
from loraplex_engine.runner import Runner
from loraplex_engine.scheduling.policy import Policy, StepPlan, take
from loraplex_engine.sequence import Sequence

CHUNKS = (64, 64, 128)  # tokens of one prompt, one chunk after the other
COPIED_BLOCKS = 16
LONGEST_S = 3.0
LEAST_STEPS = 3  # even where they take longer


def time_copies(device: Device, arena: list[LayerKv], host: list[LayerKv]) -> float:
    """Seconds that a block takes from the device to the host and back, per way."""
    num_blocks = min(COPIED_BLOCKS, len(arena[0].k), len(host[0].k))
    if num_blocks == 0:
        return math.inf
    pairs = [(block, block) for block in range(num_blocks)]
    started_s = 0.0
    for _ in range(2):  # the first round pays for touching the memory
        started_s = time.perf_counter()
        for source, target in ((arena, host), (host, arena)):
            done = device.copy_blocks(source, target, pairs)
            if done is not None:
                done.synchronize()
    return (time.perf_counter() - started_s) / (2 * num_blocks)


def calibrate(
    runner: Runner[Any],
    policy: Policy,
    kv: PagedKv,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Tell the policy how long a few steps of different shapes take; leaves no trace in `kv`.

    The very first step also prepares kernels and memory, and does not count.
    """
    chunks = [min(n, max_num_batched_tokens) for n in CHUNKS]
    streams = [max_num_seqs, 1, max(1, max_num_seqs // 4)]
    if sum(chunks) // kv.block_size + 1 + max_num_seqs > kv.num_free:
        return  # a cache this small has no room for it
    prompt = _sequence(sum(chunks))
    kv.extend(prompt, sum(chunks))
    started_s, num_steps = clock(), 0

    def run(plan: StepPlan) -> None:
        nonlocal num_steps
        step_s = clock()
        runner.collect(runner.launch(plan))
        if num_steps:
            policy.learn(plan, clock() - step_s)
        num_steps += 1

    for chunk, count in zip(chunks, streams, strict=True):
        plan = StepPlan()
        take(plan, prompt, chunk)
        run(plan)
        prompt.num_computed = prompt.num_scheduled
        readers, plan = _streams(kv, prompt, count)
        run(plan)
        for reader in readers:
            del reader.block_table[:-1]  # the others are the prompt's
            kv.free(reader)
        if num_steps > LEAST_STEPS and clock() > started_s + LONGEST_S:
            break
    kv.free(prompt)


def _streams(kv: PagedKv, prompt: Sequence, count: int) -> tuple[list[Sequence], StepPlan]:
    """A step of so many streams that all read what is computed of the prompt."""
    shared = prompt.block_table[: prompt.num_computed // kv.block_size]
    start = len(shared) * kv.block_size
    readers = [_sequence(start + 1) for _ in range(count)]
    plan = StepPlan()
    for reader in readers:
        kv.extend(reader, 1)
        reader.block_table[:0] = shared
        reader.num_computed = reader.num_scheduled = start
        take(plan, reader, 1)
    return readers, plan


def _sequence(num_tokens: int) -> Sequence:
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    return Sequence("calibration", (0,) * num_tokens, sampling, "calibration", arrival_s=0.0)
