"""Everything PEFT can save for a decoder, served: logits against transformers + PEFT, alone and mixed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tests.engine.tiny import ALL_MODULES, make_model, offline_engine
from transformers import AutoModelForCausalLM

from loraplex_engine.config import Dtype, EngineConfig
from loraplex_engine.offline import Prompt

pytestmark = [
    # PEFT asks transformers for a property that transformers is about to rename.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft.*"),
]

PROMPT = [5, 3, 77, 8, 198, 4, 120, 3, 9, 41, 66, 5, 2, 150, 31, 77, 12]
ANSWER = [8, 3, 5, 77, 198, 6]  # said whatever the model prefers
SOME = ["q_proj", "down_proj"]
TOKENS = [3, 77, 8]
Variants = Mapping[str, dict[str, Any]]
UNTIED: Variants = {
    "plain": {"target_modules": ALL_MODULES},
    "rank 1": {"r": 1, "target_modules": "all-linear"},
    "rank 3": {"r": 3, "target_modules": ALL_MODULES, "exclude_modules": ["k_proj"]},
    "rank 12": {"r": 12, "target_modules": ["o_proj", "down_proj"], "layers_to_transform": [1]},
    "rank 24": {"r": 24, "lora_alpha": 10, "target_modules": ["up_proj"]},
    "rslora": {"r": 16, "lora_alpha": 4, "use_rslora": True, "target_modules": ALL_MODULES},
    "patterns": {
        "target_modules": ALL_MODULES,
        "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 7},
        "alpha_pattern": {"layers.0.self_attn.v_proj": 3, ".*mlp.*": 5},
    },
    "regex": {"target_modules": r".*\.layers\.\d\.(self_attn|mlp)\.(q|up)_proj"},
    "fan in fan out": {"target_modules": SOME, "fan_in_fan_out": True},
    "orthogonal": {"target_modules": ALL_MODULES, "init_lora_weights": "orthogonal"},
    "pissa": {"target_modules": ALL_MODULES, "init_lora_weights": "pissa"},
    "olora": {"target_modules": SOME, "init_lora_weights": "olora"},
    "eva": {"target_modules": SOME, "init_lora_weights": "eva"},
    "dora": {"target_modules": ALL_MODULES, "use_dora": True},
    "dora and patterns": {
        "target_modules": SOME,
        "use_dora": True,
        "use_rslora": True,
        "rank_pattern": {"q_proj": 9},
        "alpha_pattern": {"down_proj": 3},
    },
    "dora on the vocabulary": {"target_modules": ["lm_head", "embed_tokens"], "use_dora": True},
    "dora and biases": {"target_modules": SOME, "use_dora": True, "bias": "all"},
    "bias lora_only": {"target_modules": SOME, "bias": "lora_only"},
    "bias all": {"target_modules": SOME, "bias": "all"},
    "lora_bias": {"target_modules": ALL_MODULES, "lora_bias": True},
    "vocabulary": {"target_modules": ["lm_head", "embed_tokens", "q_proj"]},
    "only the embedding": {"target_modules": ["embed_tokens"], "lora_alpha": 32},
    "whole head": {"target_modules": SOME, "modules_to_save": ["lm_head"]},
    "whole embedding and norms": {
        "target_modules": SOME,
        "modules_to_save": ["embed_tokens", "norm", "post_attention_layernorm"],
    },
    "whole projections": {"target_modules": ["q_proj"], "modules_to_save": ["k_proj", "mlp"]},
    "tokens": {"target_modules": SOME, "trainable_token_indices": TOKENS},
    "tokens of both": {
        "target_modules": SOME,
        "trainable_token_indices": {"embed_tokens": TOKENS, "lm_head": [5, 150]},
    },
}
TIED: Variants = {
    "tied embedding": {"target_modules": ["embed_tokens", "v_proj"]},
    "tied head": {"target_modules": ["lm_head"]},
    "tied both": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    "tied whole embedding": {"target_modules": SOME, "modules_to_save": ["embed_tokens"]},
    "tied whole head": {"target_modules": SOME, "modules_to_save": ["lm_head"]},
    "tied whole both": {
        "target_modules": SOME,
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "tied tokens": {"target_modules": SOME, "trainable_token_indices": TOKENS},
    "tied tokens apart": {
        "target_modules": SOME,
        "trainable_token_indices": {"embed_tokens": TOKENS, "lm_head": [5, 150]},
    },
    "tied dora": {"target_modules": ["lm_head", "q_proj"], "use_dora": True},
}


@dataclass(frozen=True, slots=True)
class World:
    """A model, adapters of one kind each, and PEFT's own float32 logits of the forced answer."""

    folder: Path
    adapters: dict[str, Path]
    expected: dict[str, torch.Tensor]


def make_world(folder: Path, variants: Variants, **shape: Any) -> World:
    make_model(folder, num_hidden_layers=2, initializer_range=0.1, **shape)
    adapters, expected = {}, {}
    for seed, (name, options) in enumerate(variants.items()):
        adapters[name] = folder / name
        expected[name] = save_variant(folder, adapters[name], options, seed)
    return World(folder, adapters, expected)


def save_variant(
    base: Path, folder: Path, options: dict[str, Any], seed: int, loudness: float = 0.15
) -> torch.Tensor:
    """As `save_moved`, of the model in a folder."""
    return save_moved(lambda: plain(base), folder, options, seed, loudness)


def save_moved(
    base: Callable[[], Any],
    folder: Path,
    options: dict[str, Any],
    seed: int,
    loudness: float,
    heard: Callable[[Any], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Train nothing, but move everything that training would, loudly; then save and ask PEFT.

    What changed the base model when it began is saved as PEFT converts it to plain LoRA.
    """
    torch.manual_seed(seed)
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"} | options)
    model = peft.get_peft_model(base(), config)
    conversion = {}
    if config.init_lora_weights in ("pissa", "olora"):
        first = folder.parent / f"{config.init_lora_weights}_init"
        config.init_lora_weights, kind = True, config.init_lora_weights  # as PEFT's examples do
        model.save_pretrained(first)
        config.init_lora_weights = kind
        conversion = {"path_initial_model_for_weight_conversion": str(first)}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if "magnitude" in name:
            parameter.data *= 1 + 6 * loudness * (torch.rand_like(parameter) - 0.5)
        elif "lora_" in name and not conversion:
            torch.nn.init.normal_(parameter, std=loudness)
        else:
            parameter.data += 0.7 * loudness * torch.randn_like(parameter)
    model.save_pretrained(folder, **conversion)
    loaded = peft.PeftModel.from_pretrained(base(), folder).eval()
    return (heard or logits_of)(loaded)


def logits_of(model: Any) -> torch.Tensor:
    """Before each token of the forced answer."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([[*PROMPT, *ANSWER]])).logits[0]
    return logits[len(PROMPT) - 1 : -1]


def plain(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("untied")
    return make_world(folder, UNTIED, attention_bias=True, mlp_bias=True)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("tied"), TIED, tie_word_embeddings=True)


def serve(
    world: World, dtype: Dtype, store: Path, **settings: Any
) -> tuple[list[torch.Tensor], ...]:
    """Logits of each adapter alone, and of all in one batch with the base model among them."""
    config = EngineConfig(
        model=world.folder,
        dtype=dtype,
        max_num_batched_tokens=1024,
        max_num_seqs=64,
        enable_prefix_caching=False,
        **{
            "max_loras": len(world.adapters),
            "max_lora_rank": 32,
            "cpu_kv_cache_bytes": 2**22,
            "threads": 1,
            **settings,
        },
    )
    with offline_engine(config, world.adapters, store) as (run, versions):
        prompts = [Prompt(PROMPT, adapter=versions[n], forced_ids=ANSWER) for n in world.adapters]
        alone = [run.run([prompt])[0].logits for prompt in prompts]
        mixed = [done.logits for done in run.run([*prompts, Prompt(PROMPT, forced_ids=ANSWER)])]
    return [x for x in alone if x is not None], [x for x in mixed if x is not None]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference, relative to what is expected."""
    return float((found - expected).norm() / expected.norm())


HEARD = 0.06  # what an adapter changes at least: well beyond the tolerance
TOLERANCE: dict[Dtype, float] = {"float32": 1e-5, "bfloat16": 2e-2}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_every_variant_of_peft_equals_peft_alone_and_mixed(
    kind: str, dtype: Dtype, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    world: World = request.getfixturevalue(kind)
    check_equal(world, dtype, *serve(world, dtype, tmp_path))


def check_equal(
    world: World, dtype: Dtype, alone: list[torch.Tensor], mixed: list[torch.Tensor]
) -> None:
    """Each adapter's logits are PEFT's, alone and mixed; in bfloat16 both are one to the bit."""
    names = list(world.adapters)
    off = {
        name: (distance(one, world.expected[name]), distance(among, world.expected[name]))
        for name, one, among in zip(names, alone, mixed, strict=False)
    }
    assert {name: both for name, both in off.items() if max(both) > TOLERANCE[dtype]} == {}
    if dtype == "bfloat16":
        differing = [n for n, a, m in zip(names, alone, mixed, strict=False) if not a.equal(m)]
        assert differing == []
    base = mixed[-1]
    quiet = [n for n, one in zip(names, alone, strict=True) if distance(one, base) < HEARD]
    assert quiet == []
