"""What LoRA costs: an engine without it, one whose sixteen adapters rest, and that one with all in use.

PYTHONPATH=. OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 \\
    PYTHONPATH=. python tests/bench/bench_lora.py

All in this process, over the same weights, in turns: bursts of 32 sequences of SmolLM2, prompts of 64
tokens, in bfloat16; the adapters are of ranks 8, 16, 32 and 64 on all seven projections. Ratios are of
output tokens per second, prompts included. LoRA that rests may cost 2 % at most, LoRA in use 15 %.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from paired import alternate, ratio
from random_adapters import NUM_ADAPTERS, make_adapters
from tests.engine.memory_adapters import MemoryAdapters

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, adapter_cache, build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.importer import DEMO_MODEL, import_model
from loraplex_engine.messages import Generate, SamplingParams
from loraplex_engine.model import layers
from loraplex_engine.offline import NoText

RANKS = (8, 16, 32, 64)
PROMPT_TOKENS = 64
OUT = Path(__file__).parents[2] / "out"


def burst(engine: Engine, name: str, versions: list[str], seqs: int, tokens: int) -> float:
    """Output tokens a second; of processor time on one thread."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    for i in range(seqs):
        engine.submit(
            Generate(
                request_id=f"{name}-{i}",
                prompt_ids=tuple((31 * i + 7 * at) % 40_000 + 10 for at in range(PROMPT_TOKENS)),
                sampling=SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True),
                tenant="bench",
                project="bench",
                cache_scope=name,  # nobody has computed its prompts before
                adapter=versions[i % len(versions)] if versions else None,
            )
        )
    while engine.has_work:
        engine.step()
    return seqs * tokens / (clock() - started)


def load_adapters(config: EngineConfig, model: LoadedModel, folder: Path) -> AdapterCache:
    """All of them in their slots."""
    store = AdapterStore(folder)
    cache = adapter_cache(config, model, store)
    base, limits = BaseModel.from_checkpoint(None, config.model), Limits(max_rank=max(RANKS))
    for adapter in sorted((OUT / "bench-adapters-mixed").iterdir()):
        cache.start_load(store.put(adapter, base=base, limits=limits).version)
    while len(cache.resident) < NUM_ADAPTERS:
        cache.poll()
        time.sleep(0.01)
    return cache


class Calls:
    """How often a LoRA kernel was called; a mock would keep every call's tensors."""

    def __init__(self) -> None:
        self.count = 0
        self._apply: Callable[..., None] = layers.apply_lora

    def __call__(self, *arguments: Any, **named: Any) -> None:
        self.count += 1
        self._apply(*arguments, **named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seqs", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=24, help="of each sequence")
    args = parser.parse_args()
    folder = import_model(DEMO_MODEL, Path.home() / ".cache" / "loraplex")
    make_adapters(folder, OUT / "bench-adapters-mixed", RANKS)
    config = EngineConfig(
        model=folder, dtype="bfloat16", max_model_len=1024, cpu_kv_cache_bytes=2**27, host_kv_bytes=0,
        max_loras=NUM_ADAPTERS, max_lora_rank=max(RANKS),
        scheduling_policy="fcfs",  # the same steps for all
    )  # fmt: skip
    model = load_model(config)
    calls = Calls()
    with patch.object(layers, "apply_lora", calls), TemporaryDirectory() as store:
        cache = load_adapters(config, model, Path(store))
        without = build_engine(config, model, MemoryAdapters([], num_slots=1), NoText())
        enabled = build_engine(replace(config), model, cache, NoText())
        number = iter(range(1_000_000))

        def bursts(engine: Engine, versions: list[str]) -> float:
            return burst(engine, str(next(number)), versions, args.seqs, args.tokens)

        def resting() -> float:
            before = calls.count
            rate = bursts(enabled, [])
            assert calls.count == before, "a LoRA kernel ran for the base model"
            return rate

        works = {
            "without": lambda: bursts(without, []),
            "resting": resting,
            "in use": lambda: bursts(enabled, sorted(cache.resident)),
        }
        seen = alternate(works, args.rounds)
        cache.close()
    print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    print(f"LoRA kernels called in base-only steps: 0, in all: {calls.count}")
    medians = ", ".join(f"{name} {median(rates):.0f}" for name, rates in seen.items())
    print(f"output tokens a second: {medians}")
    print(f"resting / without: {ratio(seen['resting'], seen['without'])}")
    print(f"sixteen adapters in use / base only: {ratio(seen['in use'], seen['resting'])}")


if __name__ == "__main__":
    main()
