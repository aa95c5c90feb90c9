"""The offline engine against transformers and PEFT, on tiny random models in float32."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import peft
import pytest
import torch
from tests.engine.tiny import ALL_MODULES, make_adapter, make_model, offline_engine

from loraplex_engine.config import EngineConfig
from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import Completion, Offline, Prompt

# PEFT asks transformers for a property that transformers is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

TOLERANCE = 1e-3
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 47, 50]  # around blocks of 16 and chunks of 20
ADAPTERS: dict[str, dict[str, Any]] = {
    "wide": {"rank": 16, "alpha": 16, "modules": ALL_MODULES},
    "attention": {"rank": 4, "alpha": 8, "modules": ["q_proj", "v_proj"]},
    "mlp": {"rank": 3, "alpha": 2, "modules": ["gate_proj", "down_proj"]},
    "head": {"rank": 5, "alpha": 10, "modules": ["o_proj", "lm_head"]},
}


class Runs(NamedTuple):
    offline: Offline
    versions: dict[str, str]

    def __call__(self, prompts: list[Prompt]) -> list[Completion]:
        return self.offline.run(
            replace(p, adapter=None if p.adapter is None else self.versions[p.adapter])
            for p in prompts
        )


class World:
    """A model, its adapters, and what transformers + PEFT says of a prompt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = make_model(folder)
        self.adapters = {name: folder / name for name in ADAPTERS}
        for seed, (name, settings) in enumerate(ADAPTERS.items()):
            make_adapter(self.base, self.adapters[name], seed=seed, **settings)
        self.peft: Any = None
        for name, path in self.adapters.items():
            if self.peft is None:
                self.peft = peft.PeftModel.from_pretrained(self.base, path, adapter_name=name)
            else:
                self.peft.load_adapter(path, adapter_name=name)
        self.peft.eval()

    @contextmanager
    def engine(self, **settings: Any) -> Iterator[Runs]:
        """What runs prompts whose adapters are named."""
        defaults = {
            "max_num_batched_tokens": 20,
            "cpu_kv_cache_bytes": 2**21,
            "max_loras": len(ADAPTERS),
            "max_lora_rank": 16,
            "threads": 1,
        }
        config = EngineConfig(model=self.folder, **defaults | settings)
        with offline_engine(config, self.adapters, self.folder / "store") as (offline, versions):
            yield Runs(offline, versions)

    @torch.no_grad()
    def logits(self, prompt: Prompt, completion: list[int]) -> torch.Tensor:
        ids = torch.tensor([[*prompt.token_ids, *completion]])
        if prompt.adapter is None:
            with self.peft.disable_adapter():
                logits = self.peft(ids).logits
        else:
            self.peft.set_adapter(prompt.adapter)
            logits = self.peft(ids).logits
        wanted: torch.Tensor = logits[0, len(prompt.token_ids) - 1 : -1]
        return wanted

    def check(self, prompt: Prompt, completion: Completion) -> None:
        """Logits agree at every step, so greedy tokens do wherever they are not a tie."""
        assert completion.logits is not None
        expected = self.logits(prompt, completion.token_ids)
        assert len(completion.token_ids) == prompt.sampling.max_tokens
        assert (completion.logits - expected).abs().max() < TOLERANCE
        assert completion.token_ids == completion.logits.argmax(-1).tolist()
        margin = expected.topk(2).values
        is_clear = (margin[:, 0] - margin[:, 1]) > TOLERANCE
        assert is_clear.float().mean() > 0.9
        same = expected.argmax(-1) == torch.tensor(completion.token_ids)
        assert bool(same[is_clear].all())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("tiny"))


def prompts_of(seed: int, adapters: list[str | None]) -> list[Prompt]:
    draw = random.Random(seed)
    return [
        Prompt(
            [draw.randrange(199) for _ in range(length)],
            adapter=draw.choice(adapters),
            sampling=GREEDY,
            arrives=draw.randrange(12),
        )
        for length in LENGTHS
    ]


@pytest.mark.parametrize("adapter", [None, *ADAPTERS])
def test_alone_each_adapter_equals_peft(world: World, adapter: str | None) -> None:
    with world.engine() as run:
        for prompt in prompts_of(1, [adapter])[3:6]:
            (completion,) = run([prompt])
            world.check(prompt, completion)


@pytest.mark.parametrize("seed", range(3))
def test_all_adapters_mixed_in_one_batch_equal_peft(world: World, seed: int) -> None:
    prompts = prompts_of(seed, [None, *ADAPTERS])
    with world.engine() as run:
        for prompt, completion in zip(prompts, run(prompts), strict=True):
            world.check(prompt, completion)


def test_more_adapters_than_slots_take_turns(world: World) -> None:
    prompts = prompts_of(5, list(ADAPTERS))
    with world.engine(max_loras=2) as run:
        for prompt, completion in zip(prompts, run(prompts), strict=True):
            world.check(prompt, completion)


def test_warm_prefix_gives_the_cold_answer(world: World) -> None:
    prompts = prompts_of(2, [None, "wide"])
    with world.engine() as run:
        cold, warm = run(prompts), run(prompts)
    for prompt, first, second in zip(prompts, cold, warm, strict=True):
        assert first.finished is not None
        assert second.finished is not None
        assert second.finished.cached_tokens == (len(prompt.token_ids) - 1) // 16 * 16
        assert first.token_ids == second.token_ids
        world.check(prompt, second)


def test_preemption_by_recompute_gives_the_same_tokens(world: World) -> None:
    prompts = prompts_of(3, [None, "attention"])
    block_bytes = 2 * 3 * 2 * 16 * 8 * 4
    settings = {"cpu_kv_cache_bytes": 8 * block_bytes, "enable_prefix_caching": False}
    # The default policy looks ahead and avoids what is tested here.
    with world.engine(**settings, scheduling_policy="fcfs") as run:
        for prompt, completion in zip(prompts, run(prompts), strict=True):
            world.check(prompt, completion)
        stats = run.offline.engine.stats()
    assert stats.preemptions > 0
    assert stats.free_blocks == 8
    assert stats.tokens.recomputed > 0


VARIANTS: dict[str, Callable[[], dict[str, Any]]] = {
    "multi-head": lambda: {"num_key_value_heads": 6},
    "biases": lambda: {"attention_bias": True, "mlp_bias": True},
    "tied": lambda: {"tie_word_embeddings": True},
    "sharded": lambda: {"shard_bytes": 20_000},
    "linear": lambda: {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
    },
    "llama3": lambda: {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_family_equal_transformers(variant: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, **VARIANTS[variant]())
    config = EngineConfig(
        model=tmp_path, max_num_batched_tokens=20, cpu_kv_cache_bytes=2**21, max_loras=1
    )
    prompt = Prompt(list(range(3, 60)), sampling=GREEDY)
    with offline_engine(config, {}, tmp_path / "store") as (offline, _):
        (completion,) = offline.run([prompt])
    assert completion.logits is not None
    ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
    with torch.no_grad():
        expected = reference(ids).logits[0, len(prompt.token_ids) - 1 : -1]
    assert (completion.logits - expected).abs().max() < TOLERANCE
