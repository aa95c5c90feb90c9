"""The first steps of an engine, timed before anybody waits: the first plans then know their length."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from loraplex_engine.messages import SamplingParams
from loraplex_engine.prefix_cache import PagedKv
from loraplex_engine.runner import Runner
from loraplex_engine.scheduling.policy import Policy, StepPlan, take
from loraplex_engine.sequence import Sequence

CHUNKS = (16, 64, 64, 128)  # tokens, one after the other: prefill from several positions
STREAMS = (1, 4, 16, 64)
REPEATS = 2  # the first of each shape prepares kernels and memory, and is not counted


def calibrate(
    runner: Runner[Any],
    policy: Policy,
    kv: PagedKv,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Run steps of several shapes and tell the policy how long each took; leaves no trace in `kv`."""
    chunks = [n for n in CHUNKS if n <= max_num_batched_tokens]
    streams = [n for n in STREAMS if n < max_num_seqs] + [max_num_seqs]
    length = sum(chunks)
    num_blocks = length // kv.block_size + max(streams)
    if num_blocks > kv.num_free:  # too small a cache to have room for more than a guess
        return
    for repeat in range(REPEATS):
        for plan in _plans(kv, chunks, streams):
            started_s = clock()
            runner.collect(runner.launch(plan))
            if repeat:
                policy.learn(plan, clock() - started_s)


def _plans(kv: PagedKv, chunks: list[int], streams: list[int]) -> Iterator[StepPlan]:
    """A prompt in chunks, then steps of more and more streams that all read this prompt."""
    length = sum(chunks)
    prompt = _sequence(length)
    kv.extend(prompt, length)
    for num_tokens in chunks:
        yield _plan(prompt, num_tokens)
        prompt.num_computed = prompt.num_scheduled
    shared = prompt.block_table[: length // kv.block_size]
    for count in streams:
        readers = [_sequence(len(shared) * kv.block_size + 1) for _ in range(count)]
        plan = StepPlan()
        for reader in readers:
            kv.extend(reader, 1)
            reader.num_computed = reader.num_scheduled = len(shared) * kv.block_size
        own = [reader.block_table[0] for reader in readers]
        for reader, block in zip(readers, own, strict=True):
            reader.block_table[:] = [*shared, block]
            take(plan, reader, 1)
        yield plan
        for reader, block in zip(readers, own, strict=True):
            reader.block_table[:] = [block]
            kv.free(reader)
    kv.free(prompt)


def _plan(seq: Sequence, num_tokens: int) -> StepPlan:
    plan = StepPlan()
    take(plan, seq, num_tokens)
    return plan


def _sequence(num_tokens: int) -> Sequence:
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    return Sequence("calibration", (0,) * num_tokens, sampling, "calibration", arrival_s=0.0)
