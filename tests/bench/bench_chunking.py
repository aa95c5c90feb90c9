"""A long prompt arriving among decodes, its chunks sized by the time budget and all of it in one step.

`python tests/bench/bench_chunking.py`: eight streams of SmolLM2 in this process and, again and again, a
prompt of 1,536 tokens; rounds with and without chunking in turns. Prints the others' inter-token times.
"""

import argparse
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import adapter_cache, build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.importer import DEMO_MODEL, import_model
from loraplex_engine.messages import Generate, SamplingParams, TokenEvent
from loraplex_engine.offline import NoText
from loraplex_engine.scheduling.hfs import Hfs

CACHE = Path.home() / ".cache" / "loraplex"
LONG = 1536
STREAMS = 8
TOKENS = 50


def request(name: str, num_prompt_tokens: int, max_tokens: int, start: int) -> Generate:
    prompt = tuple((start * 131 + 7 * i) % 40_000 for i in range(num_prompt_tokens))
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Generate(name, prompt, sampling, "t", "p", "t")


def gaps_s(engine: Engine, numbers: "count[int]") -> tuple[list[float], float]:
    """Times between the tokens of streams that a long prompt joined, and its TTFT."""
    names = [f"stream-{next(numbers)}" for _ in range(STREAMS)]
    for name in names:
        engine.submit(request(name, 32, TOKENS, next(numbers)))
    last_s: dict[str, float] = {}
    gaps, ttft_s, sent_s = [], 0.0, None
    long = f"long-{next(numbers)}"
    while engine.has_work:
        if sent_s is None and len(last_s) == STREAMS:
            sent_s = time.perf_counter()
            engine.submit(request(long, LONG, 1, next(numbers)))
        for event in engine.step():
            now = time.perf_counter()
            if not isinstance(event, TokenEvent):
                continue
            if event.request_id == long and sent_s is not None:
                ttft_s = now - sent_s
            elif event.request_id in last_s and sent_s is not None:
                gaps.append(now - last_s[event.request_id])
            last_s[event.request_id] = now
    return gaps, ttft_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    config = EngineConfig(
        model=import_model(DEMO_MODEL, CACHE),
        max_model_len=2048,
        max_num_batched_tokens=LONG + STREAMS,
    )
    model = load_model(config)
    found: dict[bool, list[float]] = {True: [], False: []}
    firsts: dict[bool, list[float]] = {True: [], False: []}
    numbers = count()
    with TemporaryDirectory() as folder:
        cache = adapter_cache(config, model, AdapterStore(Path(folder)))
        engine = build_engine(config, model, cache, NoText(), is_calibrated=True)
        policy = engine.policy
        assert isinstance(policy, Hfs)
        chunked = policy.filler.config
        gaps_s(engine, numbers)  # the step model learns
        for _ in range(options.rounds):
            for has_chunks in (True, False):
                whole = replace(chunked, min_step_tokens=LONG + STREAMS)
                policy.filler.config = chunked if has_chunks else whole
                gaps, ttft_s = gaps_s(engine, numbers)
                found[has_chunks] += gaps
                firsts[has_chunks].append(ttft_s)
        cache.close()
    p99 = {}
    for has_chunks, gaps in found.items():
        p50, p99[has_chunks], worst = 1e3 * np.quantile(gaps, (0.5, 0.99, 1.0))
        first = 1e3 * np.median(firsts[has_chunks])
        print(
            f"chunking {'on ' if has_chunks else 'off'}: inter-token p50 {p50:.1f} ms, "
            f"p99 {p99[has_chunks]:.1f} ms, worst {worst:.1f} ms; long prompt's TTFT {first:.0f} ms"
        )
    print(f"p99 without chunks over p99 with them: {p99[False] / p99[True]:.1f}")


if __name__ == "__main__":
    main()
