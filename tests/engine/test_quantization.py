"""int8 weights: the engine computes with the numbers that they stand for, adapters on top."""

import random
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import peft
import pytest
import torch
from tests.engine.test_families import GREEDY, LENGTHS, QWEN3_MOE, TOLERANCE, logits_of
from tests.engine.tiny import ALL_MODULES, make_adapter, make_model, offline_engine
from tokenizers import Tokenizer

from loraplex_engine.config import EngineConfig
from loraplex_engine.errors import InvalidConfig
from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import Offline, Prompt
from loraplex_kernels.linear import quantize

# PEFT asks transformers for a property that transformers is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def config(folder: Path, **settings: Any) -> EngineConfig:
    shape: dict[str, Any] = {"cpu_kv_cache_bytes": 2**22, "max_loras": 1, "max_lora_rank": 8}
    return EngineConfig(model=folder, quantization="int8", **shape | settings)


def round_weights(model: Any) -> None:
    """Put in place of a transformers model's weights the numbers that int8 can hold."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            values, scale = quantize(module.weight.detach())
            module.weight.data.copy_(values.float() * scale[:, None])
    for parameter in model.parameters():
        for expert in parameter.detach() if parameter.ndim == 3 else ():  # routers stay exact
            values, scale = quantize(expert)
            expert.copy_(values.float() * scale[:, None])


def prompts(adapter: str) -> list[Prompt]:
    draw = random.Random(3)
    return [
        Prompt([draw.randrange(199) for _ in range(length)], version, GREEDY)
        for length in LENGTHS
        for version in (None, adapter)
    ]


@pytest.mark.parametrize(
    ("family", "shape", "modules"),
    [("qwen2", {}, ALL_MODULES), ("qwen3_moe", QWEN3_MOE, ["q_proj", "o_proj"])],
)
def test_float32_equals_peft_with_rounded_weights(
    family: str, shape: dict[str, Any], modules: list[str], tmp_path: Path
) -> None:
    model = make_model(tmp_path, family, num_hidden_layers=2, pad_token_id=None, **shape)
    make_adapter(model, tmp_path / "lora", rank=4, alpha=6, modules=modules, seed=1)
    exact = logits_of_base(model)
    round_weights(model)
    assert (logits_of_base(model) - exact).abs().max() > 10 * TOLERANCE
    reference = peft.PeftModel.from_pretrained(model, tmp_path / "lora").eval()
    with offline_engine(
        config(tmp_path, max_num_batched_tokens=20), {"lora": tmp_path / "lora"}, tmp_path / "store"
    ) as (offline, versions):
        asked = prompts(versions["lora"])
        answers = offline.run(asked)
    for prompt, completion in zip(asked, answers, strict=True):
        assert completion.logits is not None
        expected = logits_of(reference, prompt, completion)
        assert (completion.logits - expected).abs().max() < TOLERANCE


def logits_of_base(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.arange(3, 30)[None]).logits
    return logits


def test_answers_are_the_same_bits_alone_and_among_others(tmp_path: Path) -> None:
    model = make_model(tmp_path, hidden_size=96, intermediate_size=96, head_dim=32)
    make_adapter(model, tmp_path / "lora", rank=4, alpha=6, modules=ALL_MODULES, seed=1)
    settings = config(
        tmp_path, dtype="bfloat16", max_num_batched_tokens=20, scheduling_policy="fcfs"
    )
    with offline_engine(settings, {"lora": tmp_path / "lora"}, tmp_path / "store") as (
        offline,
        versions,
    ):
        asked = prompts(versions["lora"])
        together = offline.run(asked)
        for prompt, mixed in zip(asked, together, strict=True):
            (alone,) = offline.run([replace(prompt, tenant="another")])
            assert alone.logits is not None
            assert mixed.logits is not None
            assert torch.equal(alone.logits, mixed.logits)


def test_an_unknown_quantization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="quantization must be one of none, int8"):
        EngineConfig(model=tmp_path, quantization="int3")  # type: ignore[arg-type]


NUM_TEXTS, TEXT_TOKENS = 8, 96


@pytest.fixture(scope="module")
def texts(demo_model: Path) -> list[list[int]]:
    """Pieces of Python's own documentation, which lies in every installation."""
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    whole = tokenizer.encode("".join(topics[name] for name in sorted(topics))[:60_000]).ids
    return [whole[i * 1500 : i * 1500 + TEXT_TOKENS] for i in range(NUM_TEXTS)]


def forced(texts: list[list[int]], adapter: str | None = None) -> list[Prompt]:
    sampling = SamplingParams(max_tokens=TEXT_TOKENS - 1, temperature=0.0, ignore_eos=True)
    return [Prompt(ids[:1], adapter, sampling, forced_ids=ids[1:]) for ids in texts]


def logits_along(offline: Offline, prompts: list[Prompt]) -> torch.Tensor:
    kept = [completion.logits for completion in offline.run(prompts)]
    return torch.cat([logits for logits in kept if logits is not None])


@pytest.fixture(scope="module")
def heard(
    demo_model: Path, texts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """By quantization: the logits along the texts, of the base model and of a demo adapter."""
    adapter = Path(__file__).parents[2] / "deploy" / "demo" / "adapters" / "acme"
    heard = {}
    for name in ("none", "int8"):
        settings = replace(
            config(demo_model, cpu_kv_cache_bytes=2**26, max_lora_rank=16, dtype="bfloat16"),
            quantization=name,
        )
        with offline_engine(settings, {"acme": adapter}, tmp_path_factory.mktemp(name)) as (
            offline,
            versions,
        ):
            heard[name] = (
                logits_along(offline, forced(texts)),
                logits_along(offline, forced(texts, versions["acme"])),
            )
    return heard


@pytest.mark.slow
@pytest.mark.parametrize("speaker", [0, 1], ids=["base", "adapter"])
def test_int8_says_what_bfloat16_says(
    heard: dict[str, tuple[torch.Tensor, torch.Tensor]], texts: list[list[int]], speaker: int
) -> None:
    targets = torch.tensor([token for ids in texts for token in ids[1:]])
    losses = {
        name: torch.nn.functional.cross_entropy(logits[speaker], targets)
        for name, logits in heard.items()
    }
    assert (losses["int8"] - losses["none"]).abs().exp() < 1.02  # of the perplexity
    same = heard["int8"][speaker].argmax(-1) == heard["none"][speaker].argmax(-1)
    best = heard["none"][speaker].topk(2).values
    assert same[best[:, 0] - best[:, 1] >= 1.0].all()  # where bfloat16 is clear, half of the steps
    assert same.float().mean() > (0.93, 0.9)[speaker]  # the adapter is forced on a text not its own
    assert not torch.equal(heard["int8"][speaker], heard["none"][speaker])
