"""In bfloat16 a request's tokens and log probabilities do not depend on who shares its steps."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.tiny import ALL_MODULES, make_adapter, make_model, offline_engine

from loraplex_engine.batch import Batch
from loraplex_engine.config import EngineConfig
from loraplex_engine.device import KvShape
from loraplex_engine.messages import SamplingParams
from loraplex_engine.model import layers
from loraplex_engine.model.config import read_model_config
from loraplex_engine.offline import Completion, Offline, Prompt
from loraplex_engine.runner import ModelRunner
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_kernels.device import has_amx
from loraplex_kernels.lora import apply_lora

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


# AMX tiles serve heads of 32 and widths in steps of 32; the smaller model runs without them.
SHAPES: dict[str, dict[str, int]] = {
    "odd": {},
    "tiles": {
        "hidden_size": 96,
        "intermediate_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}


@pytest.fixture(scope="module", params=list(SHAPES.values()), ids=list(SHAPES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exact")
    base = make_model(folder, **request.param)
    for seed in range(3):
        make_adapter(
            base, folder / str(seed), rank=4 * seed + 4, alpha=8, modules=ALL_MODULES, seed=seed
        )
    return folder


@contextmanager
def engine(
    folder: Path,
    chunk: int,
    num_blocks: int = 512,
    sizes: list[int] | None = None,
    spared: list[int] | None = None,
) -> Iterator[Callable[[list[Prompt]], list[Completion]]]:
    config = EngineConfig(
        model=folder,
        dtype="bfloat16",
        max_num_batched_tokens=chunk,
        cpu_kv_cache_bytes=num_blocks * block_bytes(folder),
        max_loras=3,
        scheduling_policy="fcfs",  # chunks of the size asked for, and preemptions when blocks run out
    )
    folders = {str(seed): folder / str(seed) for seed in range(3)}
    with offline_engine(config, folders, folder / "store") as (offline, versions):
        if sizes is not None:
            count_sequences(offline, sizes)
        if spared is not None:
            count_spared(offline, spared)
        yield lambda prompts: offline.run(
            replace(p, adapter=None if p.adapter is None else versions[p.adapter]) for p in prompts
        )


def count_sequences(offline: Offline, sizes: list[int]) -> None:
    """Note how many sequences share each step."""
    launch = offline.engine.runner.launch

    def counted(plan: StepPlan) -> Any:
        sizes.append(len(plan.items))
        return launch(plan)

    offline.engine.runner.launch = counted  # type: ignore[method-assign]  # watched from here on


def count_spared(offline: Offline, spared: list[int]) -> None:
    """Note the keys of each step that one sequence walks for others."""
    runner = offline.engine.runner
    assert isinstance(runner, ModelRunner)
    decoder: Any = runner.decoder
    forward = decoder.forward

    def counted(batch: Batch, *arguments: Any) -> Any:
        spared.append(0 if batch.companies is None else batch.companies.spared)
        return forward(batch, *arguments)

    decoder.forward = counted


def block_bytes(folder: Path) -> int:
    shape = read_model_config(folder)
    return KvShape(3, shape.num_kv_heads, 16, shape.head_dim, torch.bfloat16).block_bytes


def prompts(count: int = 16, arrivals: int = 8) -> list[Prompt]:
    draw = random.Random(0)
    return [
        Prompt(
            [draw.randrange(199) for _ in range(draw.randrange(1, 60))],
            adapter=draw.choice([None, "0", "1", "2"]),
            sampling=SamplingParams(
                max_tokens=10, temperature=i % 2, seed=i, ignore_eos=True, logprobs=i % 3
            ),
            arrives=draw.randrange(arrivals),
        )
        for i in range(count)
    ]


def assert_same_bits(some: list[Completion], others: list[Completion]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs
        assert len(one.logprobs) == len(one.token_ids)
        assert one.logits is not None
        assert other.logits is not None
        assert torch.equal(one.logits, other.logits)


@pytest.mark.parametrize("chunk", [16, 24, 128])
def test_answers_are_the_same_bits_alone_and_among_others(folder: Path, chunk: int) -> None:
    with engine(folder, chunk) as run:
        together = run(prompts())
    with engine(folder, 64) as run:
        solo = [run([prompt])[0] for prompt in prompts()]
    assert_same_bits(solo, together)


def test_one_among_thirty_two_says_what_it_says_alone(folder: Path) -> None:
    sizes: list[int] = []
    asked = prompts(32, arrivals=1)
    with engine(folder, 256, sizes=sizes) as run:
        run([Prompt([1], adapter) for adapter in ("0", "1", "2")])  # loaded, so that nobody waits
        together = run(asked)
    assert max(sizes) == 32
    with engine(folder, 64, sizes=sizes) as run:
        sizes.clear()
        solo = [run([prompt])[0] for prompt in asked]
    assert max(sizes) == 1
    assert_same_bits(solo, together)


def test_a_warm_prefix_gives_the_same_bits(folder: Path) -> None:
    with engine(folder, 24) as run:
        cold, warm = run(prompts()), run(prompts())
    assert sum(c.finished.cached_tokens for c in warm if c.finished) > 0
    assert_same_bits(cold, warm)


def test_a_system_prompt_that_is_walked_together_gives_the_same_bits(folder: Path) -> None:
    """Three companies: four of an adapter, three of none, and two of another tenant."""
    draw = random.Random(1)
    system = [draw.randrange(199) for _ in range(100)]
    whose: list[tuple[str, str | None, int]] = [("a", "1", 4), ("a", None, 3), ("b", None, 2)]
    firsts = [Prompt(system, adapter, tenant=tenant) for tenant, adapter, _ in whose]
    asked = [
        Prompt(
            [*system, *(draw.randrange(199) for _ in range(draw.randrange(1, 40)))],
            adapter,
            SamplingParams(max_tokens=12, temperature=i % 2, seed=i, ignore_eos=True, logprobs=2),
            tenant=tenant,
        )
        for tenant, adapter, count in whose
        for i in range(count)
    ]
    spared: list[int] = []
    with engine(folder, 64, spared=spared) as run:
        run(firsts)
        together = run(asked)
    # Heads that no tile holds, and CPUs without tiles, have no companies
    walks = has_amx() and read_model_config(folder).head_dim % 32 == 0
    assert max(spared) == (96 * ((4 - 1) + (3 - 1) + (2 - 1)) if walks else 0)
    with engine(folder, 64, spared=spared) as run:
        spared.clear()
        solo = [run([prompt])[0] for prompt in asked]
    assert max(spared) == 0
    assert_same_bits(solo, together)


def test_a_preemption_leaves_no_trace_in_the_bits(folder: Path) -> None:
    with engine(folder, 64) as run:
        roomy = run(prompts())
    with engine(folder, 64, num_blocks=16) as run:
        tight = run(prompts())
    assert sum(t.finished.recomputed_tokens for t in tight if t.finished) > 0
    assert_same_bits(roomy, tight)


def test_no_lora_kernel_runs_for_the_base_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = 0

    def counted(*arguments: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        apply_lora(*arguments)

    monkeypatch.setattr(layers, "apply_lora", counted)
    with engine(folder, 64) as run:
        run([replace(prompt, adapter=None) for prompt in prompts()])
        assert num_calls == 0
        run(prompts()[:4])
    assert num_calls > 0
