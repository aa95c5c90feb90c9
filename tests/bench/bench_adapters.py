"""What a thousand adapters cost where few fit: tokens a second with 32 slots, over a slot for each.

OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 NUMBA_NUM_THREADS=2 \\
    python tests/bench/bench_adapters.py

All in this process, over the same weights and the same store, in turns: the 64 requests of w1, all at once,
32 running, each with an adapter drawn of a thousand by Zipf(1), or with the next of one more than there are
slots, again and again. Every adapter (rank 8, all seven projections) has a tenant of its own. One engine has
32 slots and below them what `loraplex serve` has, the other a slot for every adapter that is asked for,
loaded beforehand. A thousand adapters take 5 GB of disk while this runs. The first may cost 15 %, the
second 40 %.
"""

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from paired import alternate, ratio
from random_adapters import make_adapters
from workload import load

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, adapter_cache, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.importer import DEMO_MODEL, import_model
from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import Offline, Prompt

RANK = 8
AT_ONCE = 50  # made before they are put into the store
OUT = Path(__file__).parents[2] / "out"


def registered(store: AdapterStore, config: EngineConfig, count: int) -> list[str]:
    """So many versions, each of its own content."""
    base, limits = BaseModel.from_checkpoint(None, config.model), Limits(max_rank=RANK)
    versions = []
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(count, first + AT_ONCE))
        with TemporaryDirectory(dir=OUT) as folder:
            make_adapters(config.model, Path(folder), (RANK,), numbers)
            versions += [
                store.put(Path(folder) / f"a{number:02d}", base=base, limits=limits).version
                for number in numbers
            ]
    assert len(set(versions)) == count
    return versions


class Served:
    """An engine and its slots."""

    def __init__(self, config: EngineConfig, model: LoadedModel, store: AdapterStore) -> None:
        self.cache: AdapterCache = adapter_cache(config, model, store)
        self.offline = Offline(config, model, self.cache)

    def preload(self, versions: Sequence[str]) -> None:
        for version in versions:
            self.cache.start_load(version)
        while len(self.cache.resident) < len(versions):
            for outcome in self.cache.poll():
                assert outcome.error is None, outcome
            time.sleep(0.01)

    def rate(self, versions: Sequence[str], number: int) -> float:
        """Output tokens a second; another number means prompts that nobody has computed."""
        prompts = [
            Prompt(
                request.prompt_ids,
                version,
                SamplingParams(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=True),
                tenant=version,
            )
            for request, version in zip(load("w1", shift=number), versions, strict=True)
        ]
        started = time.perf_counter()
        done = self.offline.run(prompts)
        seconds = time.perf_counter() - started
        assert all(d.finished is not None and d.finished.finish_reason == "length" for d in done)
        return sum(len(d.token_ids) for d in done) / seconds

    def tiers(self) -> str:
        return "; ".join(f"{t.tier}: {t.hits} hits, {t.loads} loads" for t in self.cache.stats)


def zipf(versions: Sequence[str], rounds: int, requests: int) -> list[list[str]]:
    """What each round asks for."""
    weights = 1 / np.arange(1, len(versions) + 1)
    drawn = np.random.default_rng(0).choice(
        len(versions), size=(rounds, requests), p=weights / weights.sum()
    )
    return [[versions[i] for i in row] for row in drawn]


def cycle(versions: Sequence[str], rounds: int, requests: int) -> list[list[str]]:
    numbers = np.arange(rounds * requests).reshape(rounds, requests) % len(versions)
    return [[versions[i] for i in row] for row in numbers]


def compare(
    name: str,
    asked: list[list[str]],
    config: EngineConfig,
    model: LoadedModel,
    store: AdapterStore,
) -> None:
    """The first row is the warm-up's."""
    versions = list(dict.fromkeys(version for row in asked for version in row))
    few = Served(config, model, store)
    every = Served(replace(config, max_loras=len(versions)), model, store)
    every.preload(versions)
    numbers = {id(served): iter(range(len(asked))) for served in (few, every)}

    def burst(served: Served) -> float:
        number = next(numbers[id(served)])
        return served.rate(asked[number], number)

    works = {"few": lambda: burst(few), "every": lambda: burst(every)}
    seen = alternate(works, len(asked) - 1)
    print(f"{name}: {len(versions)} adapters asked for")
    for kind, rates in seen.items():
        print(f"  {kind}: {', '.join(f'{rate:.1f}' for rate in rates)} tokens/s")
    print(f"  {config.max_loras} slots ({few.tiers()})")
    print(f"  over a slot for each: {ratio(seen['few'], seen['every'])}", flush=True)
    few.cache.close()
    every.cache.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapters", type=int, default=1000, help="registered")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("zipf", "cycle"))
    args = parser.parse_args()
    folder = import_model(DEMO_MODEL, Path.home() / ".cache" / "loraplex")
    config = EngineConfig(
        model=folder,
        dtype="bfloat16",
        max_model_len=1024,
        max_loras=args.slots,
        max_lora_rank=RANK,
        host_kv_bytes=0,
    )
    model = load_model(config)
    requests = len(load("w1"))
    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=OUT) as place:
        store = AdapterStore(Path(place))
        count = args.adapters if args.only != "cycle" else args.slots + 1
        versions = registered(store, config, count)
        print(f"load {os.getloadavg()[0]:.1f}, {torch.get_num_threads()} threads, {count} adapters")
        if args.only != "cycle":
            compare("Zipf(1)", zipf(versions, args.rounds + 1, requests), config, model, store)
        if args.only != "zipf":
            few = versions[: args.slots + 1]
            compare("slots + 1", cycle(few, args.rounds + 1, requests), config, model, store)


if __name__ == "__main__":
    main()
