"""Where a step's time goes: decode steps of 1, 8 and 32 sequences, and a prompt's chunk of 512 tokens.

OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 NUMBA_NUM_THREADS=2 \
    python tests/bench/profile_step.py

Each operation is timed where it is called (half a microsecond a call); what is left of a step is "rest".
Medians over the steps, in milliseconds. "host" is plan, batch, text and messages.
With one thread, processor time is taken instead of the wall clock, so that a busy machine disturbs it less.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
from random_adapters import NUM_ADAPTERS, make_adapters
from tokenizers import Tokenizer

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine import runner
from loraplex_engine.build import build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.messages import Generate, SamplingParams
from loraplex_engine.model import decoder, feed_forward, layers
from loraplex_engine.model.decoder import projection_layout
from loraplex_engine.text import ModelText
from loraplex_engine.wire import encode

CONTEXT = 384  # tokens behind a decoding sequence
CHUNK = 512
MAX_RANK = 16
PATIENCE = 48  # tokens that the first sequences say while the last prompts are still computed


class Profile:
    """Seconds by operation of the step under way, and of all steps so far."""

    def __init__(self) -> None:
        is_alone = numba.config.NUMBA_NUM_THREADS == 1
        self.clock = time.thread_time if is_alone else time.perf_counter
        self._step: defaultdict[str, float] = defaultdict(float)
        self._steps: list[dict[str, float]] = []

    def watch(self, operation: str, owner: Any, name: str) -> None:
        """Count the time inside owner.name as this operation's; watched functions do not nest."""
        setattr(owner, name, self.timed(operation, getattr(owner, name)))

    def timed(self, operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = self.clock()
            result = function(*args, **kwargs)
            self._step[operation] += self.clock() - started
            return result

        return timed

    def step(self, work: Callable[[], Any]) -> None:
        self._step.clear()
        started = self.clock()
        work()
        whole = self.clock() - started
        rest = whole - sum(self._step.values())
        self._steps.append({**self._step, "rest": rest, "step": whole})

    def medians(self) -> dict[str, float]:
        """Milliseconds by operation since the last call."""
        steps, self._steps = self._steps, []
        names = dict.fromkeys(name for step in steps for name in step)
        return {n: 1e3 * statistics.median(step.get(n, 0.0) for step in steps) for n in names}


HOST = ("schedule", "batch", "collect, text", "messages")


class Case(NamedTuple):
    name: str
    num_seqs: int
    is_decode: bool
    num_adapters: int

    def requests(self, versions: list[str], num_steps: int) -> Iterator[Generate]:
        length = CONTEXT - num_steps if self.is_decode else CHUNK
        for i in range(self.num_seqs if self.is_decode else num_steps):
            yield Generate(
                request_id=f"{self.name}-{i}",
                prompt_ids=tuple((31 * i + 7 * at) % 40000 + 10 for at in range(length)),
                sampling=SamplingParams(
                    max_tokens=num_steps + PATIENCE, temperature=0.0, ignore_eos=True
                )
                if self.is_decode
                else SamplingParams(max_tokens=1, temperature=0.0),
                tenant=f"tenant-{i}",
                project="profile",
                cache_scope=f"{self.name}-{i}",
                adapter=versions[i % self.num_adapters] if self.num_adapters else None,
            )


def cases() -> Iterator[Case]:
    for num_adapters in (0, NUM_ADAPTERS):
        suffix = f"{num_adapters} adapters"
        for num_seqs in (1, 8, 32):
            yield Case(f"decode {num_seqs}, {suffix}", num_seqs, True, num_adapters)
        yield Case(f"prefill {CHUNK}, {min(1, num_adapters)} adapter", 1, False, num_adapters)


def make_engine(model: Path, adapters: Path, store_folder: Path) -> tuple[Engine, list[str]]:
    config = EngineConfig(
        model=model,
        dtype="bfloat16",
        device="cpu",
        max_num_batched_tokens=CHUNK,
        max_loras=NUM_ADAPTERS,
        max_lora_rank=MAX_RANK,
        scheduling_policy="fcfs",  # a whole chunk in one step
        threads=numba.config.NUMBA_NUM_THREADS,
    )
    loaded = load_model(config)
    layout = projection_layout(loaded.config)
    store = AdapterStore(store_folder)
    base, limits = BaseModel.from_projections(None, layout), Limits(max_rank=MAX_RANK)
    folders = sorted(adapters.iterdir())
    versions = [store.put(folder, base=base, limits=limits).version for folder in folders]
    cache = AdapterCache(
        store,
        layout,
        max_loras=NUM_ADAPTERS,
        max_lora_rank=MAX_RANK,
        dtype=loaded.dtype,
        device=loaded.device.torch_device,
        host_bytes=config.max_cpu_lora_bytes,
    )
    text = ModelText(Tokenizer.from_file(str(model / "tokenizer.json")))
    engine = build_engine(config, loaded, cache, text)
    for version in versions:
        cache.start_load(version)
    while len(cache.resident) < len(versions):
        cache.poll()
        time.sleep(0.01)
    return engine, versions


def watch_all(profile: Profile, engine: Engine) -> None:
    profile.watch("products", layers, "linear")
    profile.watch("lora", layers, "apply_lora")
    profile.watch("attention", decoder, "paged_attention")
    profile.watch("rotary and cache", decoder, "rotary_write_kv")
    profile.watch("norms", layers, "rms_norm")
    profile.watch("sampling", engine.runner.sampler, "sample")  # type: ignore[attr-defined]
    profile.watch("batch", runner, "build_batch")
    profile.watch("schedule", engine.policy, "schedule")
    profile.watch("collect, text", engine, "_collect")


def run(
    case: Case, engine: Engine, profile: Profile, versions: list[str], num_steps: int
) -> dict[str, float]:
    """Milliseconds by operation."""
    requests = list(case.requests(versions, num_steps))
    say = profile.timed("messages", encode)

    def step() -> None:
        say(engine.step())

    for request in requests:
        engine.submit(request)
        if not case.is_decode:
            profile.step(step)
    while engine.policy.waiting or any(not seq.is_decode for seq in engine.policy.running):
        engine.step()
    for _ in range(num_steps if case.is_decode else 0):
        profile.step(step)
    medians = profile.medians()
    while engine.has_work:
        engine.step()
    return medians


def main() -> None:
    cache = Path(os.environ.get("LORAPLEX_CACHE", Path.home() / ".cache" / "loraplex"))
    out = Path(__file__).parents[2] / "out"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=cache / "models" / "smollm2-135m-instruct")
    parser.add_argument("--adapters", type=Path, default=out / "bench-adapters")
    parser.add_argument("--steps", type=int, default=24, help="of each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    make_adapters(args.model, args.adapters)
    profile, columns = Profile(), {}
    for name, function in feed_forward.ACTIVATIONS.items():  # layers keep theirs when they are made
        feed_forward.ACTIVATIONS[name] = profile.timed("activation", function)
    with tempfile.TemporaryDirectory() as folder:
        engine, versions = make_engine(args.model, args.adapters, Path(folder))
        watch_all(profile, engine)
        for case in cases():
            if args.only in case.name:
                columns[case.name] = run(case, engine, profile, versions, args.steps)
    for column in columns.values():
        column["host, % of the step"] = 100 * sum(column[n] for n in HOST) / column["step"]
        column["host and rest, % of the step"] = (
            column["host, % of the step"] + 100 * column["rest"] / column["step"]
        )
    names = dict.fromkeys(name for column in columns.values() for name in column)
    print(f"load {os.getloadavg()[0]:.1f}, {numba.config.NUMBA_NUM_THREADS} threads")
    print("ms |", " | ".join(columns))
    print("---|" * (len(columns) + 1))
    for name in names:
        print(name, "|", " | ".join(f"{c.get(name, 0.0):.2f}" for c in columns.values()))


if __name__ == "__main__":
    main()
