"""What PEFT saves is loaded with the delta that PEFT itself computes, module by module."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file, save_file
from tests.adapters.folders import BASE, HIDDEN, INTERMEDIATE, NUM_LAYERS, projections
from transformers import LlamaConfig, LlamaForCausalLM

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel, ProjectionSpec, SliceSpec
from loraplex_adapters.loader import AdapterWeights, Loader
from loraplex_adapters.manifest import Limits
from loraplex_adapters.peft_config import parse_config
from loraplex_adapters.store import AdapterStore, StoredAdapter
from loraplex_engine.model.adaptable import adaptable_modules
from loraplex_engine.model.config import read_model_config
from loraplex_kernels.lora import reference

# PEFT asks transformers for a property that transformers renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

Deltas = dict[str, torch.Tensor]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VARIANTS: dict[str, dict[str, Any]] = {
    "rank 1": {"r": 1, "target_modules": ALL},
    "rank 3": {"r": 3, "target_modules": ALL},
    "rank 24": {"r": 24, "target_modules": ALL},
    "rslora": {"r": 16, "lora_alpha": 16, "use_rslora": True, "target_modules": ALL},
    "alpha below rank": {"r": 12, "lora_alpha": 1, "target_modules": ["q_proj", "v_proj"]},
    "alpha is a float": {"r": 4, "lora_alpha": 2.5, "target_modules": ["q_proj"]},
    "rank pattern": {
        "r": 4,
        "target_modules": ALL,
        "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 7, "^model.layers.0.self_attn.k_proj": 3},
    },
    "alpha pattern": {
        "r": 4,
        "target_modules": ALL,
        "alpha_pattern": {"layers.0.self_attn.v_proj": 3, ".*mlp.*": 5, "down_proj": 9, "o_proj": 1},
    },
    "patterns and rslora": {
        "r": 4,
        "use_rslora": True,
        "target_modules": ALL,
        "rank_pattern": {"(q|k)_proj": 9},
        "alpha_pattern": {"(k|v)_proj": 30},
    },
    "regex targets": {"r": 4, "target_modules": r".*\.layers\.\d\.(self_attn|mlp)\.(q|up)_proj"},
    "all-linear": {"r": 4, "target_modules": "all-linear"},
    "excluded modules": {"r": 4, "target_modules": ALL, "exclude_modules": ["k_proj"]},
    "one layer": {"r": 4, "target_modules": ALL, "layers_to_transform": [1]},
    "only q": {"r": 4, "target_modules": ["q_proj"]},
    "only k": {"r": 4, "target_modules": ["k_proj"]},
    "only up": {"r": 4, "target_modules": ["up_proj"]},
    "q, v and o": {"r": 4, "target_modules": ["q_proj", "v_proj", "o_proj"]},
    "gaussian start": {"r": 4, "target_modules": ALL, "init_lora_weights": "gaussian"},
    "orthogonal start": {"r": 4, "target_modules": ALL, "init_lora_weights": "orthogonal"},
    "fan in fan out": {"r": 4, "target_modules": ["q_proj"], "fan_in_fan_out": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny_llama().save_pretrained(folder)
    return folder


def tiny_llama(**shape: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            **shape,
        )
    )


def save_peft(folder: Path, options: dict[str, Any], seed: int = 1) -> Deltas:
    """Save an adapter as a user does, and return its deltas as PEFT merges them."""
    torch.manual_seed(seed)
    model = get_peft_model(tiny_llama(), LoraConfig(task_type="CAUSAL_LM", **options))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder, save_embedding_layers=False)
    return {
        name.removeprefix("base_model.model."): module.get_delta_weight("default").detach()
        for name, module in model.named_modules()
        if hasattr(module, "get_delta_weight")
    }


def put_and_load(
    folder: Path, root: Path, dtype: torch.dtype = torch.float32
) -> tuple[StoredAdapter, AdapterWeights]:
    store = AdapterStore(root)
    stored = store.put(folder, base=BASE, limits=Limits(max_rank=32))
    loader = Loader(BaseModel.from_projections(None, projections()), max_rank=32, dtype=dtype)
    return stored, loader.load(store.path(stored.version), stored.version)


def deltas_of(weights: AdapterWeights) -> Deltas:
    return {m: f.scale * (f.a.float().T @ f.b.float()).T for m, f in weights.modules.items()}


@pytest.mark.filterwarnings("ignore:.*fan_in_fan_out.*:UserWarning")
@pytest.mark.parametrize("variant", VARIANTS)
def test_loaded_delta_is_pefts_own(variant: str, tmp_path: Path) -> None:
    expected = save_peft(tmp_path / "adapter", VARIANTS[variant])

    stored, weights = put_and_load(tmp_path / "adapter", tmp_path / "store")

    found = deltas_of(weights)
    assert found.keys() == expected.keys() == {m.module for m in stored.report.modules}
    for module, delta in expected.items():
        torch.testing.assert_close(found[module], delta, rtol=1e-5, atol=1e-5)
    assert stored.report.rank == weights.rank


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_file_is_loaded_without_another_rounding(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    save_peft(tmp_path / "adapter", VARIANTS["rank pattern"])
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    halves = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(halves, path)

    _, weights = put_and_load(tmp_path / "adapter", tmp_path / "store", dtype)

    for module, factors in weights.modules.items():
        name = f"base_model.model.{module}"
        assert torch.equal(factors.a, halves[f"{name}.lora_A.weight"])
        assert torch.equal(factors.b, halves[f"{name}.lora_B.weight"].T)


PATTERNS = [
    "q_proj", "proj", "self_attn.q_proj", "layers.1", "layers.1.self_attn", "^q_proj", "q_pro",
    "^model.layers.0.self_attn.q_proj", "(q|k)_proj", "q_proj|nothing", ".*mlp.*", "", "attn.q_proj",
    r"layers\.[01]\.mlp\.(up|down)_proj", "model", "q_proj$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_matches_what_it_matches_in_peft(pattern: str) -> None:
    """Alone, and shadowing a later pattern that matches everything."""
    for patterns in ({pattern: 3}, {pattern: 3, ".*": 5}):
        rules = parse_config(json.dumps({"r": 8, "rank_pattern": patterns}).encode())
        for module in BASE.modules:
            expected = patterns.get(get_pattern_key(patterns.keys(), module), 8)
            assert rules.rank_of(module) == expected, module


def rename(old: str, new: str) -> Any:
    return lambda name: name.replace(old, new)


@pytest.mark.parametrize(
    "spelling",
    [
        rename("base_model.model.", ""),
        rename("base_model.model.model.", ""),
        rename("base_model.model.model.", "base_model.model."),
        rename(".weight", ".default.weight"),
        rename("base_model.model.", "module.base_model.model."),
        rename("base_model.model.model.", "_orig_mod.base_model.model.model._orig_mod."),
        rename("base_model.model.model.", "base_model.model.model.language_model."),
        rename("base_model.model.model.", "base_model.model.language_model.model."),
    ],
)
def test_spelling_of_tensor_names_does_not_change_the_version(
    spelling: Any, tmp_path: Path
) -> None:
    save_peft(tmp_path / "adapter", VARIANTS["patterns and rslora"])
    stored, _ = put_and_load(tmp_path / "adapter", tmp_path / "store")
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({spelling(name): tensors[name] for name in reversed(tensors)}, path)

    again, _ = put_and_load(tmp_path / "adapter", tmp_path / "store")

    assert again.version == stored.version
    assert len(list(AdapterStore(tmp_path / "store").versions())) == 1


def test_config_of_a_newer_peft_is_served_with_a_warning(tmp_path: Path) -> None:
    save_peft(tmp_path / "adapter", VARIANTS["only q"])
    path = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "future_key": {}, "peft_type": None, "r": 4.0}))

    stored, _ = put_and_load(tmp_path / "adapter", tmp_path / "store")

    assert "unknown config key 'future_key' is ignored" in stored.report.warnings


def test_config_of_2023_is_served_with_a_warning(tmp_path: Path) -> None:
    save_peft(tmp_path / "adapter", VARIANTS["only q"])
    early = {"r": 4, "lora_alpha": 8, "peft_type": "LORA", "target_modules": ["q_proj"]}
    early |= {"bias": "none", "enable_lora": None, "merge_weights": False}
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(early))

    stored, _ = put_and_load(tmp_path / "adapter", tmp_path / "store")

    assert stored.report.warnings == ("unknown config key 'merge_weights' is ignored",)


def test_todays_peft_config_has_no_unknown_key(tmp_path: Path) -> None:
    save_peft(tmp_path / "adapter", VARIANTS["all-linear"])
    stored, _ = put_and_load(tmp_path / "adapter", tmp_path / "store")
    assert stored.report.warnings == ()


def test_another_bases_name_is_a_warning(tmp_path: Path) -> None:
    save_peft(tmp_path / "adapter", VARIANTS["only q"])
    path = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "base_model_name_or_path": "somebody/else-bnb-4bit"}))

    stored, _ = put_and_load(tmp_path / "adapter", tmp_path / "store")

    assert stored.report.warnings == (
        "the adapter was trained on 'somebody/else-bnb-4bit', it is served on 'tiny'",
    )


def test_scale_is_part_of_the_version(tmp_path: Path) -> None:
    save_peft(tmp_path / "a", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]})
    save_peft(tmp_path / "b", {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj"]})

    first, _ = put_and_load(tmp_path / "a", tmp_path / "store")
    second, _ = put_and_load(tmp_path / "b", tmp_path / "store")

    assert first.version != second.version
    assert [m.scale for m in second.report.modules] == [4.0, 4.0]


def test_lora_on_lm_head_is_served_where_the_engine_has_a_projection_for_it(
    tmp_path: Path,
) -> None:
    expected = save_peft(tmp_path / "adapter", {"r": 4, "target_modules": ["q_proj", "lm_head"]})
    head = ProjectionSpec("lm_head", HIDDEN, (SliceSpec("lm_head", 40),))
    base = BaseModel.from_projections("tiny", (*projections(), head))
    store = AdapterStore(tmp_path / "store")

    version = store.put(tmp_path / "adapter", base=base, limits=Limits(max_rank=4)).version

    found = deltas_of(Loader(base, 4, torch.float32).load(store.path(version), version))
    torch.testing.assert_close(found["lm_head"], expected["lm_head"], rtol=1e-5, atol=1e-5)


def test_adapters_of_all_shapes_in_one_batch_add_pefts_deltas(tmp_path: Path) -> None:
    """From PEFT's files through the store, the cache and the slabs to the kernels' definition."""
    names = ("rank 3", "rank pattern", "patterns and rslora", "only k", "one layer")
    expected = [save_peft(tmp_path / n, VARIANTS[n], seed=i) for i, n in enumerate(names)]
    store = AdapterStore(tmp_path / "store")
    limits = Limits(max_rank=32)
    versions = [store.put(tmp_path / n, base=BASE, limits=limits).version for n in names]
    cache = AdapterCache(
        store, projections(), max_loras=5, max_lora_rank=32, dtype=torch.float32,
        device=torch.device("cpu"), host_bytes=0,
    )  # fmt: skip
    for version in versions:
        cache.start_load(version)
    deadline = time.monotonic() + 60
    while len(cache.resident) < len(versions):
        assert time.monotonic() < deadline
        assert all(outcome.error is None for outcome in cache.poll())
    cache.close()
    slots = torch.tensor([*(cache.slot_of(version) for version in versions), -1])

    for projection in projections():
        x = torch.randn(6, projection.in_features)
        y = torch.zeros(6, sum(projection.slice_widths))
        y = reference.apply_lora(y, x, cache.slabs[projection.name], slots)
        widths = projection.slice_widths
        for token, deltas in enumerate([*expected, {}]):
            pieces = [
                deltas[s.module] @ x[token] if s.module in deltas else torch.zeros(width)
                for s, width in zip(projection.slices, widths, strict=True)
            ]
            torch.testing.assert_close(y[token], torch.cat(pieces), rtol=1e-4, atol=1e-4)


def test_base_read_from_a_checkpoint_is_the_base_of_its_projections(checkpoint: Path) -> None:
    """And of its vocabulary and norms, which the engine's own view of the model has too."""
    found = BaseModel.from_checkpoint("tiny", checkpoint)
    linear = {n: shape for n, shape in found.modules.items() if n in BASE.modules}
    assert linear == BASE.modules
    assert found.modules == adaptable_modules(read_model_config(checkpoint)).modules
    assert not found.ties_embeddings


def test_tied_checkpoint_has_a_head_without_a_tensor_of_its_own(tmp_path: Path) -> None:
    tiny_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    found = BaseModel.from_checkpoint("tiny", tmp_path)
    assert found.ties_embeddings
    assert found.modules == adaptable_modules(read_model_config(tmp_path)).modules
