"""Steps planned and launched ahead, and at once, in turns: what the time between two steps costs.

`python tests/bench/bench_steps_ahead.py`: eight streams of SmolLM2 in this process, paired rounds in
alternating order. Prints the seconds per token of both and their ratio.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import adapter_cache, build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.importer import DEMO_MODEL, import_model
from loraplex_engine.messages import Generate, SamplingParams
from loraplex_engine.offline import NoText

CACHE = Path.home() / ".cache" / "loraplex"


def seconds_per_token(engine: Engine, name: str, streams: int, tokens: int) -> float:
    """Of decodes alone: the clock starts when all prompts have been computed."""
    for number in range(streams):
        prompt = tuple((number * 31 + 7 * i) % 40_000 for i in range(64))
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        engine.submit(Generate(f"{name}-{number}", prompt, sampling, "t", "p", name))
    while engine.stats().tokens.completion == 0 or engine.policy.waiting:
        engine.step()
    started_s, before = time.perf_counter(), engine.stats().tokens.completion
    while engine.has_work:
        engine.step()
    return (time.perf_counter() - started_s) / (engine.stats().tokens.completion - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    config = EngineConfig(model=import_model(DEMO_MODEL, CACHE), max_model_len=1024)
    model = load_model(config)
    with TemporaryDirectory() as folder:
        engines, caches = [], []
        for steps_ahead in (0, 1):
            mode = replace(config, steps_ahead=steps_ahead)
            caches.append(adapter_cache(mode, model, AdapterStore(Path(folder))))
            engines.append(build_engine(mode, model, caches[-1], NoText(), is_calibrated=True))
        seen: tuple[list[float], list[float]] = ([], [])
        for number in range(options.rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                name = f"{number}-{which}"
                spent = seconds_per_token(engines[which], name, options.streams, options.tokens)
                seen[which].append(spent)
        for cache in caches:
            cache.close()
    ratios = [ahead / at_once for at_once, ahead in zip(*seen, strict=True)]
    at_once, ahead = map(statistics.median, seen)
    plan_s = engines[0].stats().scheduler.schedule_s
    print(f"at once {1e3 * at_once:.3f} ms a token, ahead {1e3 * ahead:.3f} ms")
    print(f"ahead / at once: {statistics.median(ratios):.3f} (median of {len(ratios)} pairs)")
    print(f"planning {1e6 * plan_s:.0f} us of a step of {1e3 * engines[0].stats().step_s:.2f} ms")


if __name__ == "__main__":
    main()
