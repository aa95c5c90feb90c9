"""The same on a real model: SmolLM2, float32 and bfloat16, alone and all mixed in one batch.

A few kinds on all of it; every variant on its first layers, with its real weights and vocabulary.
"""

import copy
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.engine.test_peft_variants import (
    HEARD,
    PROMPT,
    TIED,
    TOKENS,
    TOLERANCE,
    UNTIED,
    Variants,
    World,
    check_equal,
    distance,
    logits_of,
    plain,
    save_moved,
    save_variant,
    serve,
)
from tests.engine.tiny import ALL_MODULES, offline_engine
from transformers import AutoModelForCausalLM, AutoTokenizer

from loraplex_engine.config import Dtype, EngineConfig
from loraplex_engine.offline import Prompt

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft.*"),
]

LOUDNESS = 0.03
VARIANTS: Variants = {
    "rslora and patterns": {
        "target_modules": ALL_MODULES,
        "use_rslora": True,
        "rank_pattern": {"q_proj": 3},
        "alpha_pattern": {".*mlp.*": 24},
    },
    "dora": {"target_modules": ALL_MODULES, "use_dora": True},
    "lora_bias": {"target_modules": ALL_MODULES, "lora_bias": True},
    "vocabulary": {
        "target_modules": ["embed_tokens", "v_proj"],
        "ensure_weight_tying": True,
        "lora_alpha": 128,
    },
    "whole head": {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head", "norm"]},
    "tokens": {
        "target_modules": ALL_MODULES,
        "trainable_token_indices": TOKENS,
        "lora_alpha": 48,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def world(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("variants")
    adapters, expected = {}, {}
    for seed, (name, options) in enumerate(VARIANTS.items()):
        adapters[name] = folder / name
        expected[name] = save_variant(demo_model, adapters[name], options, seed, LOUDNESS)
    return World(demo_model, adapters, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_kind_of_adapter_equals_peft_on_a_real_model(
    world: World, dtype: Dtype, tmp_path: Path
) -> None:
    settings = {"cpu_kv_cache_bytes": 2**26, "max_lora_extra_bytes": 2**30, "max_model_len": 256}
    check_equal(world, dtype, *serve(world, dtype, tmp_path, **settings))


NUM_LAYERS = 4
OF_AN_UNTIED_VOCABULARY = {  # SmolLM2's is tied, for which TIED has their like
    "dora on the vocabulary", "vocabulary", "only the embedding", "whole head",
    "whole embedding and norms", "tokens", "tokens of both",
}  # fmt: skip
EVERY: Variants = {n: o for n, o in {**UNTIED, **TIED}.items() if n not in OF_AN_UNTIED_VOCABULARY}


@pytest.fixture(scope="module")
def shallow(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Each adapter as loud as it must be to be heard, whatever it reaches."""
    folder = tmp_path_factory.mktemp("shallow")
    model = AutoModelForCausalLM.from_pretrained(
        demo_model, num_hidden_layers=NUM_LAYERS, dtype=torch.float32
    )
    model.save_pretrained(folder / "base")
    base = logits_of(plain(folder / "base"))
    adapters, expected = {}, {}
    for seed, (name, options) in enumerate(EVERY.items()):
        adapters[name] = folder / name
        for loudness in (0.12, 0.18, 0.27, 0.4):
            expected[name] = save_moved(
                lambda: copy.deepcopy(model), adapters[name], options, seed, loudness
            )
            if distance(expected[name], base) > 1.5 * HEARD:
                break
    return World(folder / "base", adapters, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_variant_equals_peft_on_the_first_layers_of_a_real_model(
    shallow: World, dtype: Dtype, tmp_path: Path
) -> None:
    settings = {"cpu_kv_cache_bytes": 2**24, "max_lora_extra_bytes": 2**30, "max_model_len": 256}
    check_equal(shallow, dtype, *serve(shallow, dtype, tmp_path, max_cpu_lora_bytes=0, **settings))


NEW_WORDS = ("<tool>", "<result>", "<|end_of_answer|>")
SAID = "Call <tool>, wait for the <result> and stop.<|end_of_answer|>"


class Talk(NamedTuple):
    """Adapters that know NEW_WORDS, and PEFT's logits of what they say."""

    base: Path
    ids: list[int]
    adapters: dict[str, Path]
    expected: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def talk(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Talk:
    """As transformers and PEFT save them, with the tokenizer's own files."""
    folder = tmp_path_factory.mktemp("talk")
    model = AutoModelForCausalLM.from_pretrained(
        demo_model, num_hidden_layers=2, dtype=torch.float32
    )
    model.save_pretrained(folder / "base")
    shutil.copy(demo_model / "tokenizer.json", folder / "base")
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    tokenizer.add_tokens(list(NEW_WORDS[:2]))
    tokenizer.add_special_tokens({"eos_token": NEW_WORDS[2]})
    ids = tokenizer(SAID).input_ids
    new = tokenizer.convert_tokens_to_ids(list(NEW_WORDS))
    assert new == [len(tokenizer) - 3 + i for i in range(3)]
    variants = {
        "LoRA of the embedding": {"target_modules": ["embed_tokens", "v_proj"], "lora_alpha": 64},
        "tokens": {"target_modules": ALL_MODULES, "trainable_token_indices": [*TOKENS, *new]},
    }

    def resized() -> Any:
        own = copy.deepcopy(model)
        own.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        return own

    def heard(loaded: Any) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = loaded(torch.tensor([[*PROMPT, *ids]])).logits[0]
        return logits[len(PROMPT) - 1 : -1]

    adapters, expected = {}, {}
    for seed, (name, options) in enumerate(variants.items()):
        adapters[name] = folder / name
        expected[name] = save_moved(resized, adapters[name], options, seed, 0.12, heard)
        tokenizer.save_pretrained(adapters[name])
    return Talk(folder / "base", ids, adapters, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_added_tokens_equal_peft_on_the_first_layers_of_a_real_model(
    talk: Talk, dtype: Dtype, tmp_path: Path
) -> None:
    config = EngineConfig(
        model=talk.base, dtype=dtype, max_loras=8, max_lora_rank=32, threads=1,
        cpu_kv_cache_bytes=2**24, max_lora_extra_bytes=2**30, max_model_len=256,
        max_cpu_lora_bytes=0, enable_prefix_caching=False,
    )  # fmt: skip
    with offline_engine(config, talk.adapters, tmp_path) as (run, versions):
        prompts = [Prompt(PROMPT, versions[name], forced_ids=talk.ids) for name in talk.adapters]
        alone = [run.run([prompt])[0].logits for prompt in prompts]
        mixed = [done.logits for done in run.run([*prompts, Prompt(PROMPT)])]
    for (name, expected), one, among in zip(talk.expected.items(), alone, mixed, strict=False):
        assert one is not None
        assert among is not None
        assert max(distance(each, expected) for each in (one, among)) < TOLERANCE[dtype], name
        assert dtype == "float32" or one.equal(among)
