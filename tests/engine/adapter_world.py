"""A tiny model, eight versions of adapters of it, and engines over them."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.engine.tiny import ALL_MODULES, make_adapter, make_model

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, adapter_cache, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.messages import (
    SamplingParams,
)
from loraplex_engine.offline import Offline, Prompt

NUM_ADAPTERS = 8
LONG = [random.Random(1).randrange(199) for _ in range(70)]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


class World(NamedTuple):
    folder: Path
    config: EngineConfig
    model: LoadedModel
    store: AdapterStore
    versions: list[str]

    def engine(self, **change: Any) -> "Run":
        config = replace(self.config, **change)
        cache = adapter_cache(config, self.model, self.store)
        return Run(Offline(config, self.model, cache), cache)

    def put(self, folder: Path) -> str:
        base = BaseModel.from_checkpoint(None, self.folder)
        return self.store.put(folder, base=base, limits=Limits(32)).version

    def cold(self, adapter: str | None, prompt: list[int] = LONG) -> list[int]:
        """What an engine says that has never heard anything."""
        with self.engine() as run:
            return run.say(Prompt(prompt, adapter=adapter, sampling=GREEDY))[0]


class Run(NamedTuple):
    offline: Offline
    cache: AdapterCache

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.cache.check_integrity()
        self.cache.close()

    def say(self, *prompts: Prompt) -> list[list[int]]:
        return [done.token_ids for done in self.offline.run(prompts)]


def make_world(folder: Path) -> World:
    base = make_model(folder)
    config = EngineConfig(
        model=folder,
        dtype="bfloat16",
        max_num_seqs=128,
        max_num_batched_tokens=128,
        cpu_kv_cache_bytes=2**24,
        max_loras=4,
        max_lora_rank=16,
        max_cpu_lora_bytes=2**21,
        threads=1,
    )
    store = AdapterStore(folder / "store")
    made = World(folder, config, load_model(config), store, [])
    for seed in range(NUM_ADAPTERS):
        path = folder / f"adapter-{seed}"
        make_adapter(base, path, rank=1 + 2 * seed, alpha=16, modules=ALL_MODULES, seed=seed)
        made.versions.append(made.put(path))
    return made
