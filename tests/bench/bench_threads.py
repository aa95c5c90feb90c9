"""How long a decode step takes on the threads of this environment: medians over some seconds, by the clock.

PYTHONPATH=. OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=2 [NUMBA_THREADING_LAYER=omp] OMP_WAIT_POLICY=passive \\
    GOMP_SPINCOUNT=3000 python tests/bench/bench_threads.py [--beside]

SmolLM2 in bfloat16, base model only, prompts of 64 tokens; alternate environments on a quiet machine.
`--beside`: another process works 30 ms of every 60, as the API does for many streams.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numba
from tests.engine.memory_adapters import MemoryAdapters

from loraplex_engine.build import build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.importer import DEMO_MODEL, import_model
from loraplex_engine.messages import Abort, SamplingParams
from loraplex_engine.offline import NoText, Prompt, generate

BATCHES, PROMPT_TOKENS, SECONDS = (1, 4, 32), 64, 2.5
OTHER = """
import time
while True:
    until = time.perf_counter() + 0.03
    while time.perf_counter() < until:
        pass
    time.sleep(0.03)
"""
ENDLESS = SamplingParams(max_tokens=900, temperature=0.0, ignore_eos=True)


def step_ms(engine: Engine, num_seqs: int) -> float:
    names = [f"{num_seqs}-{i}" for i in range(num_seqs)]
    for i, name in enumerate(names):
        prompt = [(31 * i + 7 * at) % 40_000 + 10 for at in range(PROMPT_TOKENS)]
        engine.submit(generate(name, Prompt(prompt, sampling=ENDLESS)))
    for _ in range(num_seqs + 4):  # all of them decode then
        engine.step()
    seen, until_s = [], time.perf_counter() + SECONDS
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        engine.step()
        seen.append(time.perf_counter() - began_s)
    for name in names:
        engine.submit(Abort(name))
    while engine.has_work:
        engine.step()
    return statistics.median(seen) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", action="store_true")
    folder = import_model(DEMO_MODEL, Path.home() / ".cache" / "loraplex")
    config = EngineConfig(
        model=folder, dtype="bfloat16", max_model_len=1024, cpu_kv_cache_bytes=2**28
    )
    other = None
    if parser.parse_args().beside:
        other = subprocess.Popen([sys.executable, "-c", OTHER])
    try:
        adapters = MemoryAdapters([], num_slots=1)
        engine = build_engine(config, load_model(config), adapters, NoText())
        times = [step_ms(engine, num_seqs) for num_seqs in BATCHES]
    finally:
        if other is not None:
            other.kill()
    print(f"load {os.getloadavg()[0]:.1f}, {numba.get_num_threads()} threads", end=" ")
    print(f"of {numba.threading_layer()}{', beside another process' if other else ''}:")
    for num_seqs, ms in zip(BATCHES, times, strict=True):
        print(f"{num_seqs:3} sequences: {ms:6.1f} ms a step")


if __name__ == "__main__":
    main()
