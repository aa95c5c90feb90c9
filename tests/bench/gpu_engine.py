"""The engine end to end: throughput by adapters, idle LoRA, graphs, adapter loads, offload, greedy parity."""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
from tests.bench.gpu_machine import MIXED_RANKS, Machine
from tests.bench.gpu_models import Running, Shape, random_model, running, save_adapter
from tests.bench.gpu_report import Measure, at_least, at_most
from tests.engine.tiny import ALL_MODULES, make_adapter, make_model, offline_engine

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel
from loraplex_engine.calibration import COPIED_BLOCKS, time_copies
from loraplex_engine.config import EngineConfig
from loraplex_engine.device import KvShape
from loraplex_engine.messages import Finished, SamplingParams
from loraplex_engine.model.adaptable import adaptable_modules
from loraplex_engine.model.decoder import projection_layout
from loraplex_engine.offline import Prompt, generate
from loraplex_engine.reference_model import load as load_reference

LEAST_SHARE = 85.0  # per cent of the base model's throughput, with 16 adapters r8-64 mixed
MOST_IDLE = 2.0  # per cent lost where adapters could be served and none is
MOST_WARM_MS, MOST_COLD_MS = 25.0, 250.0  # of r16 on 8B
LOADED_RANK = 16
EAGER_ADAPTERS = 16  # with graphs and without
MIB, GB = 2**20, 1e9


class Load(NamedTuple):
    """How many streams, how long they are, and by how many adapters."""

    streams: int = 64
    prompt: int = 64
    output: int = 48
    rounds: int = 3
    num_adapters: tuple[int, ...] = (1, 4, 16, 64)
    num_loaded: int = 3


REHEARSED = Load(streams=4, prompt=8, output=4, rounds=1, num_adapters=(1, 4, 16), num_loaded=2)


@dataclass(frozen=True, slots=True)
class Streams:
    """Requests, none of which repeats another's prompt."""

    load: Load
    vocab_size: int
    numbers: Iterator[int] = field(default_factory=count)

    def tokens_per_s(self, run: Running, num_adapters: int) -> float:
        """Output tokens of all streams at once, by as many adapters in turn, 0: the base model."""
        versions = [f"{MIXED_RANKS[i % 4]}-{i}" for i in range(num_adapters)]
        run.adapters.bring(versions)
        sampling = SamplingParams(max_tokens=self.load.output, temperature=0.0, ignore_eos=True)
        for i in range(self.load.streams):
            number = next(self.numbers)
            ids = [(7919 * number + 31 * j) % self.vocab_size for j in range(self.load.prompt)]
            adapter = versions[i % num_adapters] if versions else None
            run.engine.submit(generate(f"r{number}", Prompt(ids, adapter, sampling)))
        started_s, num_tokens = time.perf_counter(), 0
        while run.engine.has_work:
            for event in run.engine.step():
                if isinstance(event, Finished):
                    assert event.finish_reason == "length", event
                    num_tokens += event.completion_tokens
        return num_tokens / (time.perf_counter() - started_s)


def measure_model(machine: Machine, shape: Shape, load: Load, folder: Path) -> Iterator[Measure]:
    """All that is measured of one model, the targets first."""
    model = random_model(shape, folder, machine.device)
    yield from _throughputs(model, shape.name, load, folder)
    yield from _load_times(model, shape, load, folder)
    yield from _offload(model, shape.name)


def _throughputs(model: LoadedModel, name: str, load: Load, folder: Path) -> Iterator[Measure]:
    streams, slots = Streams(load, model.config.vocab_size), max(load.num_adapters)
    alone, idle, graphed = 0.0, 0.0, 0.0
    with (
        running(model, folder, max_loras=0, max_num_seqs=load.streams) as base,
        running(model, folder, max_loras=slots, max_num_seqs=load.streams) as run,
    ):
        for _ in range(load.rounds + 1):  # in turns; the first compiles, and is never the best
            alone = max(alone, streams.tokens_per_s(base, 0))
            idle = max(idle, streams.tokens_per_s(run, 0))
        yield Measure(name, "no LoRA", alone, "tokens/s")
        lost = 100 * (1 - idle / alone)
        yield at_most(name, "LoRA enabled, not used: throughput lost", lost, "%", MOST_IDLE)
        for num_adapters in load.num_adapters:
            best = max(streams.tokens_per_s(run, num_adapters) for _ in range(load.rounds))
            yield Measure(name, f"{num_adapters} adapters r8-64", best, "tokens/s")
            share = 100 * best / alone
            if num_adapters == EAGER_ADAPTERS:
                graphed = best
                yield at_least(name, "16 adapters, share of no LoRA", share, "%", LEAST_SHARE)
            else:
                yield Measure(name, f"{num_adapters} adapters, share of no LoRA", share, "%")
    with running(
        model, folder, max_loras=EAGER_ADAPTERS, max_num_seqs=load.streams, is_eager=True
    ) as eager:
        streams.tokens_per_s(eager, EAGER_ADAPTERS)
        slow = max(streams.tokens_per_s(eager, EAGER_ADAPTERS) for _ in range(load.rounds))
        yield Measure(name, "16 adapters without graphs", slow, "tokens/s")
        yield Measure(name, "16 adapters, graphs against none", graphed / slow, "x")


def _load_times(model: LoadedModel, shape: Shape, load: Load, folder: Path) -> Iterator[Measure]:
    """Cold: from the disk, which has to read; warm: from host memory. Until the slot may be used."""
    store, base = AdapterStore(folder / "loaded"), adaptable_modules(model.config)
    versions = []
    for i in range(load.num_loaded):
        save_adapter(model, folder / f"adapter-{i}", LOADED_RANK)
        limits = Limits(max_rank=LOADED_RANK)
        versions.append(store.put(folder / f"adapter-{i}", base=base, limits=limits).version)
    cache = AdapterCache(
        store,
        projection_layout(model.config),
        max_loras=1,
        max_lora_rank=LOADED_RANK,
        dtype=model.dtype,
        device=model.device.torch_device,
        host_bytes=2 << 30,
        base=base,
    )
    try:
        for version in versions:
            _forget_pages(store.path(version))
        cold, warm = (
            1e3 * statistics.median([_load_s(cache, version) for version in versions])
            for _ in range(2)
        )
    finally:
        cache.close()
    for case, value, most in (("cold", cold, MOST_COLD_MS), ("warm", warm, MOST_WARM_MS)):
        said = f"{case} load of an adapter r{LOADED_RANK}"
        if shape.has_load_targets:
            yield at_most(shape.name, said, value, "ms", most)
        else:
            yield Measure(shape.name, said, value, "ms")


def _load_s(cache: AdapterCache, version: str) -> float:
    cache.start_load(version)
    while True:
        for outcome in cache.poll():
            assert outcome.error is None, outcome.error
            return outcome.seconds
        time.sleep(0.0002)


def _forget_pages(folder: Path) -> None:
    """Drop a version's files from the system's page cache."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _offload(model: LoadedModel, name: str) -> Iterator[Measure]:
    config = model.config
    shape = KvShape(config.num_layers, config.num_kv_heads, 16, config.head_dim, model.dtype)
    device = model.device
    seconds = time_copies(
        device,
        device.allocate_kv(shape, COPIED_BLOCKS),
        device.allocate_host_kv(shape, COPIED_BLOCKS),
    )
    yield Measure(name, "KV offload and back, per way", shape.block_bytes / seconds / GB, "GB/s")


def check_parity(machine: Machine, folder: Path) -> Iterator[Measure]:
    """Greedy tokens in float32, of two families, with adapters and without, as PEFT would say them."""
    for family in ("llama", "qwen3"):
        here, source = folder / family, folder / family / "model"
        model = make_model(
            source, family, hidden_size=128, head_dim=64, num_attention_heads=4, vocab_size=499
        )
        for i, rank in enumerate((8, 16)):
            make_adapter(
                model, here / f"a{i}", rank=rank, alpha=2.0 * rank, modules=ALL_MODULES, seed=i
            )
        equal = _share_of_equal_tokens(machine, here)
        yield at_least("parity", f"{family}: greedy tokens as transformers + PEFT", equal, "%", 100)


def _share_of_equal_tokens(machine: Machine, folder: Path) -> float:
    """Each prompt by the base model and by each adapter, all in the same steps."""
    is_cuda = machine.device.type == "cuda"
    config = EngineConfig(
        model=folder / "model",
        dtype="float32",
        device="cuda" if is_cuda else "cpu",
        max_num_seqs=16,
        max_loras=2,
        max_num_batched_tokens=64,
        gpu_memory_utilization=0.3,
        host_kv_bytes=0,
        cpu_kv_cache_bytes=4 * MIB,
    )
    folders = {f"a{i}": folder / f"a{i}" for i in range(2)}
    sampling = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    prompts = [
        (name, [(31 * i + 7 * j) % 499 for j in range(3 + 25 * i)])
        for i in range(4)
        for name in (None, *folders)
    ]
    with offline_engine(config, folders, folder / "store") as (offline, versions):
        asked = [Prompt(ids, name and versions[name], sampling) for name, ids in prompts]
        said = offline.run(asked)
    num_equal = num_tokens = 0
    for name, adapter in {None: None, **folders}.items():
        reference = load_reference(config.model, adapter, "float32", "float32")
        for (speaker, ids), completion in zip(prompts, said, strict=True):
            if speaker == name:
                tokens = completion.token_ids
                logits = reference.logits([*ids, *tokens], len(tokens), with_adapter=True)
                num_equal += int((logits.argmax(-1) == torch.tensor(tokens)).sum())
                num_tokens += len(tokens)
    return 100 * num_equal / num_tokens
