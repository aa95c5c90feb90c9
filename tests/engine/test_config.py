"""Settings that make no sense are refused by name, and what is left open fits the machine."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.tiny import make_model, offline_engine

from loraplex_engine.build import load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.device import Device, KvShape
from loraplex_engine.errors import CannotStart, InvalidConfig, UnsupportedModel
from loraplex_engine.model.config import read_model_config


@pytest.mark.parametrize(
    "setting",
    [
        {"dtype": "int8"},
        {"device": "tpu"},
        {"scheduling_policy": "lottery"},
        {"abort_preempted": "batch, gold"},
        {"block_size": 24},
        {"block_size": 0},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 15},
        {"max_model_len": 0},
        {"threads": 0},
        {"max_loras": 0},
        {"max_lora_rank": 0},
        {"max_cpu_lora_bytes": -1},
        {"cpu_kv_cache_bytes": 0},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": 1.1},
    ],
)
def test_a_setting_out_of_range_is_named(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(InvalidConfig, match=name):
        EngineConfig(model=Path("m"), **setting)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder)
    return folder


def test_what_is_left_open_fits_model_and_machine(folder: Path) -> None:
    with offline_engine(EngineConfig(model=folder), {}, folder / "store") as (offline, _):
        hello = offline.engine.hello
    assert hello.max_model_len == 256
    assert hello.dtype == "float32"
    assert hello.num_blocks * hello.block_size >= hello.max_model_len


def test_the_context_shrinks_to_the_cache_unless_it_was_asked_for(folder: Path) -> None:
    block_bytes = 2 * 3 * 2 * 16 * 8 * 4
    config = EngineConfig(model=folder, cpu_kv_cache_bytes=4 * block_bytes)
    with offline_engine(config, {}, folder / "store") as (offline, _):
        assert (offline.engine.hello.num_blocks, offline.engine.hello.max_model_len) == (4, 64)
    asked = EngineConfig(model=folder, cpu_kv_cache_bytes=4 * block_bytes, max_model_len=65)
    with (
        pytest.raises(InvalidConfig, match="KV cache holds 64"),
        offline_engine(asked, {}, folder / "store"),
    ):
        pass


def test_a_cache_without_room_for_a_block_cannot_start(folder: Path) -> None:
    config = EngineConfig(model=folder, cpu_kv_cache_bytes=100)
    with pytest.raises(CannotStart, match="one block"), offline_engine(config, {}, folder / "s"):
        pass


def test_a_context_beyond_the_model_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match="the model knows 256"):
        load_model(EngineConfig(model=folder, max_model_len=257))


def test_a_stretched_context_counts(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    make_model(tmp_path, "qwen2", rope_parameters=yarn, num_hidden_layers=1)
    assert read_model_config(tmp_path).max_position == 1024


def test_float16_becomes_bfloat16_on_a_cpu_unless_it_was_asked_for(tmp_path: Path) -> None:
    make_model(tmp_path, num_hidden_layers=1).half().save_pretrained(tmp_path)
    assert read_model_config(tmp_path).dtype == "float16"
    assert load_model(EngineConfig(model=tmp_path, device="cpu")).dtype == torch.bfloat16
    with pytest.raises(InvalidConfig, match="needs a GPU"):
        load_model(EngineConfig(model=tmp_path, device="cpu", dtype="float16"))


def test_a_tensor_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, num_hidden_layers=1, attention_bias=True)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"attention_bias": False}))
    with pytest.raises(UnsupportedModel, match="no use for 4 tensors"):
        load_model(EngineConfig(model=tmp_path))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ('{"architectures": ["GPT2LMHeadModel"]}', "LlamaForCausalLM, MistralForCausalLM"),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_act": "relu"}', "relu"),
    ],
)
def test_an_unknown_model_is_refused_with_what_works(
    tmp_path: Path, config: str, named: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UnsupportedModel, match=named):
        read_model_config(tmp_path)


def test_a_folder_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"config\.json cannot be read"):
        read_model_config(tmp_path)


def test_end_tokens_come_from_the_generation_config(folder: Path, tmp_path: Path) -> None:
    assert read_model_config(folder).eos_token_ids == {7}
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert read_model_config(tmp_path).eos_token_ids == {3, 4}


def test_other_weights_have_another_fingerprint(folder: Path, tmp_path: Path) -> None:
    make_model(tmp_path, seed=1)
    first, again, other = (load_model(EngineConfig(model=p)) for p in (folder, folder, tmp_path))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_blocks_survive_the_way_to_the_host_and_back() -> None:
    device = Device("cpu")
    shape = KvShape(num_layers=2, num_kv_heads=3, block_size=16, head_dim=8, dtype=torch.bfloat16)
    on_device, on_host = device.allocate_kv(shape, 4), device.allocate_host_kv(shape, 2)
    for i, layer in enumerate(on_device):
        layer.k.fill_(i + 1)
        layer.v.fill_(i + 10)
    assert device.copy_blocks(on_device, on_host, [(3, 0)]) is None
    for layer in on_device:
        layer.k[3].zero_()
        layer.v[3].zero_()
    device.copy_blocks(on_host, on_device, [(0, 3)])
    assert [(float(kv.k[3].min()), float(kv.v[3].max())) for kv in on_device] == [(1, 10), (2, 11)]
    memory = device.memory()
    assert 0 < memory.available_bytes <= memory.total_bytes
