"""What each scheduling policy makes of many requests at once, in one process and in turns.

PYTHONPATH=. OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 OMP_WAIT_POLICY=passive \\
    python tests/bench/bench_policies.py hfs fcfs

All 64 requests of w0, SmolLM2 in bfloat16, no adapters; `fcfs` fills every step to its limit.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import get_args

from tests.engine.memory_adapters import MemoryAdapters
from workload import Request, load

from loraplex_engine.build import LoadedModel, build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.importer import DEMO_MODEL, import_model
from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import NoText, Prompt, generate
from loraplex_engine.scheduling.policies import PolicyName

ROUNDS = 3


def tokens_per_s(config: EngineConfig, model: LoadedModel, requests: list[Request]) -> float:
    """Of an engine that has served nobody yet."""
    engine = build_engine(config, model, MemoryAdapters([], num_slots=1), NoText())
    for number, request in enumerate(requests):
        sampling = SamplingParams(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=True)
        engine.submit(generate(str(number), Prompt(request.prompt_ids, sampling=sampling)))
    began_s = time.perf_counter()
    while engine.has_work:
        engine.step()
    return sum(request.max_tokens for request in requests) / (time.perf_counter() - began_s)


def main() -> None:
    policies: list[PolicyName] = [name for name in get_args(PolicyName) if name in sys.argv[1:]]
    folder = import_model(DEMO_MODEL, Path.home() / ".cache" / "loraplex")
    configs = {
        policy: EngineConfig(model=folder, dtype="bfloat16", scheduling_policy=policy)
        for policy in policies
    }
    model, requests = load_model(next(iter(configs.values()))), load("w0")
    seen = {policy: list[float]() for policy in policies}
    for number in range(ROUNDS):
        for policy in policies[:: -1 if number % 2 else 1]:
            seen[policy].append(tokens_per_s(configs[policy], model, requests))
            print(f"{policy}: {seen[policy][-1]:.1f} tokens/s", flush=True)
    for policy, figures in seen.items():
        print(f"{policy}: {statistics.median(figures):.1f} tokens/s, median of {ROUNDS}")


if __name__ == "__main__":
    main()
