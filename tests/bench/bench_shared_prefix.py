"""Decode steps of sequences that begin with the same system prompt, together and each alone, in turns.

PYTHONPATH=. OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 NUMBA_THREADING_LAYER=omp \\
    python tests/bench/bench_shared_prefix.py

32 sequences of 600 tokens, heads of SmolLM2, pages of 16 tokens in random places, 30 layers of them; so
many of the sequences at a time have their first 512 tokens in common. First attention by itself over cold
pages, all layers, and finding who shares what (once a step); then whole steps of SmolLM2, every other one
without companies. Medians in milliseconds; with one thread processor time, else the wall clock.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from paired import alternate, ratio
from tests.engine.memory_adapters import MemoryAdapters

from loraplex_engine.batch import Batch
from loraplex_engine.build import build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.importer import DEMO_MODEL, import_model
from loraplex_engine.messages import Abort, SamplingParams
from loraplex_engine.offline import NoText, Prompt, generate
from loraplex_engine.runner import ModelRunner
from loraplex_kernels.attention import Companies, build_companies, paged_attention
from loraplex_kernels.warm_up import warm_up

SEQS, CONTEXT, SHARED, HEADS, KV_HEADS, DIM, PAGE = 32, 600, 512, 9, 3, 64, 16
PAGES = -(-CONTEXT // PAGE)
SIZES = (1, 2, 4, 8, 32)
ENDLESS = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)
HEADER = "| company of | alone, ms | together, ms | together / alone |"


def clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def timed(work: Callable[[], object]) -> float:
    started = clock()
    work()
    return 1e3 * (clock() - started)


def row(size: int, seen: dict[str, list[float]]) -> str:
    alone, together = (median(seen[name]) for name in ("alone", "together"))
    return f"| {size} | {alone:.1f} | {together:.1f} | {ratio(seen['together'], seen['alone'])} |"


def tables_of(size: int) -> torch.Tensor:
    """Pages of sequences in companies of a size."""
    pages = torch.randperm(SEQS * PAGES).view(SEQS, PAGES).to(torch.int32)
    pages[:, : SHARED // PAGE] = pages[::size, : SHARED // PAGE].repeat_interleave(size, 0)
    return pages[torch.randperm(SEQS)]


def measure_attention(rounds: int, layers: int) -> None:
    caches = torch.randn(layers, 2, SEQS * PAGES, KV_HEADS, PAGE, DIM).to(torch.bfloat16)
    q = torch.randn(SEQS, HEADS, DIM).to(torch.bfloat16)
    starts = torch.arange(SEQS + 1, dtype=torch.int32)
    lengths = torch.full((SEQS,), CONTEXT, dtype=torch.int32)

    def attend(tables: torch.Tensor, companies: Companies | None) -> None:
        for k, v in caches:
            paged_attention(q, k, v, tables, starts, lengths, DIM**-0.5, companies=companies)

    print(HEADER, "finding, ms |\n|---|---|---|---|---|")
    for size in SIZES:
        tables = tables_of(size)
        find = partial(build_companies, tables.numpy(), starts.numpy(), lengths.numpy(), PAGE)
        works = {
            "alone": partial(timed, partial(attend, tables, None)),
            "together": partial(timed, partial(attend, tables, find())),
        }
        seen = alternate(works, rounds)
        print(row(size, seen), f"{median(timed(find) for _ in range(100)):.3f} |")


def step_ms(engine: Engine, size: int, steps: int) -> dict[str, list[float]]:
    """Milliseconds of steps in which all sequences decode, with companies and without in turns."""
    assert isinstance(engine.runner, ModelRunner)
    decoder: Any = engine.runner.decoder
    forward, is_alone = decoder.forward, False

    def watched(batch: Batch, *arguments: Any) -> Any:
        return forward(replace(batch, companies=None) if is_alone else batch, *arguments)

    def step(alone: bool) -> float:
        nonlocal is_alone
        is_alone = alone
        return timed(engine.step)

    decoder.forward = watched
    for i in range(SEQS):
        tokens = [(7 * at + 31 * (i // size)) % 40_000 + 10 for at in range(SHARED)]
        tokens += [(11 * at + 31 * i) % 40_000 + 10 for at in range(CONTEXT - SHARED - steps)]
        prompt = Prompt(tokens, sampling=ENDLESS, tenant=f"{size}-{i // size}")
        engine.submit(generate(f"{size}-{i}", prompt))
    while engine.policy.waiting or any(not seq.is_decode for seq in engine.policy.running):
        engine.step()
    seen = alternate({"alone": partial(step, True), "together": partial(step, False)}, steps)
    decoder.forward = forward
    for i in range(SEQS):
        engine.submit(Abort(f"{size}-{i}"))
    while engine.has_work:
        engine.step()
    return seen


def measure_steps(steps: int) -> None:
    config = EngineConfig(
        model=import_model(DEMO_MODEL, Path.home() / ".cache" / "loraplex"),
        dtype="bfloat16",
        max_model_len=1024,
        cpu_kv_cache_bytes=2**30,
        max_num_seqs=SEQS,
        scheduling_policy="fcfs",
    )
    engine = build_engine(config, load_model(config), MemoryAdapters([], num_slots=1), NoText())
    print(HEADER, "\n|---|---|---|---|")
    for size in SIZES:
        print(row(size, step_ms(engine, size, steps)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--steps", type=int, default=25, help="with companies, and as many without")
    args = parser.parse_args()
    warm_up()
    print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    measure_attention(args.rounds, args.layers)
    measure_steps(args.steps)


if __name__ == "__main__":
    main()
