"""LoRA on experts, in both forms that PEFT saves, against transformers and PEFT; and the same bits."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.test_families import GREEDY, LENGTHS, QWEN3_MOE, TOLERANCE, logits_of
from tests.engine.tiny import make_model, offline_engine
from transformers import AutoModelForCausalLM

from loraplex_engine.config import EngineConfig
from loraplex_engine.offline import Prompt

pytestmark = [
    # PEFT asks transformers for a property that transformers is about to rename.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    # PEFT looks for its patterns among modules, and finds those of parameters later
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]

FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": QWEN3_MOE | {"norm_topk_prob": True},
}
FUSED = {
    "experts": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "down alone": ["experts.down_proj"],
    "router and gate": ["mlp.gate.weight", "mlp.experts.gate_up_proj"],
}
PARTS = {"mixtral": ("w1", "w3", "w2"), "qwen3_moe": ("gate_proj", "up_proj", "down_proj")}
BLOCKS = {"mixtral": "block_sparse_moe", "qwen3_moe": "mlp"}


def make(folder: Path, family: str, **shape: Any) -> Any:
    return make_model(
        folder, family, num_hidden_layers=2, pad_token_id=None, **FAMILIES[family] | shape
    )


def make_fused(model: Any, folder: Path, targets: list[str], **settings: Any) -> None:
    """As PEFT saves an adapter that was trained on transformers 5."""
    torch.manual_seed(2)
    config = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=["q_proj"], target_parameters=targets, **settings
    )
    wrapped = peft.get_peft_model(model, config)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    wrapped.save_pretrained(folder, save_embedding_layers=False)
    wrapped.unload()


def make_single(model: Any, folder: Path, family: str) -> None:
    """As PEFT saved an adapter when each expert was a module of its own; no two are alike."""
    torch.manual_seed(2)
    config, tensors = model.config, {}
    inner = getattr(config, "moe_intermediate_size", config.intermediate_size)
    widths = {"q_proj": (config.hidden_size, config.num_attention_heads * config.head_dim)}
    gate, up, down = PARTS[family]
    for e in range(config.num_local_experts):
        for part in (gate, up):
            widths[f"experts.{e}.{part}"] = (config.hidden_size, inner)
        widths[f"experts.{e}.{down}"] = (inner, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        for module, (wide, tall) in widths.items():
            block = BLOCKS[family] if "experts" in module else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{block}.{module}"
            tensors[f"{name}.lora_A.weight"] = 0.3 * torch.randn(3, wide)
            tensors[f"{name}.lora_B.weight"] = 0.3 * torch.randn(tall, 3)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "r": 3,
        "lora_alpha": 5,
        "target_modules": ["q_proj", *PARTS[family]],
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def engine_config(folder: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(
        model=folder,
        max_num_batched_tokens=20,
        cpu_kv_cache_bytes=2**21,
        max_loras=2,
        max_lora_rank=6,
        threads=1,
        **settings,
    )


def prompts(adapters: list[str | None]) -> list[Prompt]:
    draw = random.Random(3)
    return [
        Prompt([draw.randrange(199) for _ in range(length)], adapter, GREEDY)
        for length in LENGTHS
        for adapter in adapters
    ]


def assert_equal_to_peft(model: Any, folder: Path, lora: Path) -> None:
    reference = peft.PeftModel.from_pretrained(model, lora).eval()
    with offline_engine(engine_config(folder), {"lora": lora}, folder / "store") as (
        offline,
        versions,
    ):
        asked = prompts([None, versions["lora"]])
        answers = [*offline.run(asked), *offline.run(asked)]  # cold, and with a warm prefix
    for prompt, completion in zip([*asked, *asked], answers, strict=True):
        assert completion.logits is not None
        expected = logits_of(reference, prompt, completion)
        assert (completion.logits - expected).abs().max() < TOLERANCE
        if prompt.adapter is not None:
            base = logits_of(reference, replace(prompt, adapter=None), completion)
            assert (expected - base).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("targets", FUSED.values(), ids=list(FUSED))
@pytest.mark.parametrize("family", FAMILIES)
def test_fused_experts_equal_peft(family: str, targets: list[str], tmp_path: Path) -> None:
    model = make(tmp_path, family)
    make_fused(model, tmp_path / "lora", targets)
    assert_equal_to_peft(model, tmp_path, tmp_path / "lora")


def test_patterns_of_fused_parameters_count(tmp_path: Path) -> None:
    model = make(tmp_path, "mixtral")
    patterns = {
        "rank_pattern": {"experts.down_proj": 6, r".*\.gate_up_proj": 2},
        "alpha_pattern": {"layers.1.mlp.experts.gate_up_proj": 9},
        "use_rslora": True,
    }
    make_fused(model, tmp_path / "lora", FUSED["experts"], **patterns)
    assert_equal_to_peft(model, tmp_path, tmp_path / "lora")


@pytest.mark.parametrize("family", FAMILIES)
def test_single_experts_equal_peft(family: str, tmp_path: Path) -> None:
    model = make(tmp_path, family)
    make_single(model, tmp_path / "lora", family)
    assert_equal_to_peft(model, tmp_path, tmp_path / "lora")


def test_dora_on_experts_equals_the_merged_model(tmp_path: Path) -> None:
    model = make(tmp_path, "mixtral")
    make_single(model, tmp_path / "lora", "mixtral")
    add_magnitudes(model, tmp_path / "lora")
    config = engine_config(tmp_path)
    with offline_engine(config, {"lora": tmp_path / "lora"}, tmp_path / "store") as (
        offline,
        versions,
    ):
        asked = prompts([None, versions["lora"]])
        answers = offline.run(asked)
    wanted = {None: transformers_of(tmp_path), versions["lora"]: model}
    for prompt, completion in zip(asked, answers, strict=True):
        assert completion.logits is not None
        ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
        with torch.no_grad():
            expected = wanted[prompt.adapter](ids).logits[0, len(prompt.token_ids) - 1 : -1]
        assert (completion.logits - expected).abs().max() < TOLERANCE


def transformers_of(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def add_magnitudes(model: Any, lora: Path) -> None:
    """Make an adapter of single experts a DoRA, and the model what it makes of it."""
    path = lora / "adapter_model.safetensors"
    tensors = {name: t for name, t in load_file(path).items() if "q_proj" not in name}
    for name in [name for name in tensors if "lora_A" in name]:
        stem = name.removesuffix(".lora_A.weight")
        layer, expert, part = stem.split(".")[4], int(stem.split(".")[7]), stem.split(".")[8]
        experts = model.model.layers[int(layer)].mlp.experts
        whole = experts.down_proj if part == "w2" else experts.gate_up_proj
        inner = whole.shape[1] // 2
        rows = {"w1": slice(0, inner), "w3": slice(inner, None), "w2": slice(None)}[part]
        weight = whole.data[expert, rows]
        changed = weight + 5 / 3 * tensors[f"{stem}.lora_B.weight"] @ tensors[name]
        magnitude = 0.5 + torch.rand(len(weight))
        tensors[f"{stem}.lora_magnitude_vector"] = magnitude
        weight.copy_(magnitude[:, None] * changed / changed.norm(dim=1, keepdim=True))
    save_file(tensors, path, metadata={"format": "pt"})
    config = lora / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))


TILES = {"hidden_size": 96, "head_dim": 32}  # what AMX serves


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("mixtral", {}),
        ("mixtral", TILES | {"intermediate_size": 96}),
        ("qwen3_moe", {}),
        ("qwen3_moe", TILES | {"moe_intermediate_size": 64}),
    ],
)
def test_answers_are_the_same_bits_alone_and_among_others(
    family: str, shape: dict[str, int], tmp_path: Path
) -> None:
    model = make(tmp_path, family, **shape)
    make_fused(model, tmp_path / "lora", FUSED["experts"])
    config = engine_config(tmp_path, dtype="bfloat16", scheduling_policy="fcfs")
    with offline_engine(config, {"lora": tmp_path / "lora"}, tmp_path / "store") as (
        offline,
        versions,
    ):
        asked = prompts([None, versions["lora"]])
        together = offline.run(asked)
    for prompt, mixed in zip(asked, together, strict=True):
        with offline_engine(replace(config, max_num_batched_tokens=64), {}, tmp_path / "store") as (
            offline,
            _,
        ):
            (alone,) = offline.run([prompt])
        assert alone.logits is not None
        assert mixed.logits is not None
        assert torch.equal(alone.logits, mixed.logits)
