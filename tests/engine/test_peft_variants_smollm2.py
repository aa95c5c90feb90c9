"""The same on a real model: SmolLM2, float32 and bfloat16, alone and all mixed in one batch."""

from pathlib import Path

import pytest
from tests.engine.test_peft_variants import (
    TOKENS,
    Variants,
    World,
    check_equal,
    save_variant,
    serve,
)
from tests.engine.tiny import ALL_MODULES

from loraplex_engine.config import Dtype

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
