"""`loraplex models check`, the engine's half: it says what it saw, and it can fail."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.tiny import make_adapter, make_model

from loraplex_engine import model_check
from loraplex_engine.config import Dtype

# PEFT asks transformers for a property that transformers is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check")
    model = make_model(folder, "qwen2", num_hidden_layers=2, max_position_embeddings=400)
    make_adapter(model, folder / "lora", rank=4, alpha=6, modules=["q_proj", "down_proj"], seed=1)
    return folder


def check(
    model: Path, adapter: Path | None = None, against: Path | None = None, dtype: Dtype = "float32"
) -> tuple[bool, list[str]]:
    said: list[str] = []
    return model_check.check(model, adapter, against or model, dtype, said.append), said


def changed(folder: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a folder, one of its tensors spoilt."""
    shutil.copytree(folder, target)
    [path] = target.glob("*.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_and_an_adapter_are_equal(folder: Path, dtype: Dtype) -> None:
    is_equal, said = check(folder, folder / "lora", dtype=dtype)
    assert is_equal, said
    assert said[-1] == "verdict: equal"
    assert f"Qwen2ForCausalLM, {dtype} on cpu" in said[0]
    assert "rank 4, 4 modules" in said[1]
    assert said[3].startswith(
        "base model: equal: 3 prompts, cold and with a cached prefix, 96 steps"
    )
    assert said[4].startswith("with the adapter: equal: 3 prompts")


def test_one_wrong_row_of_a_weight_is_seen(folder: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][5] *= -1

    spoilt = changed(folder, tmp_path / "spoilt", spoil)
    is_equal, said = check(spoilt, folder / "lora", against=folder)
    assert not is_equal
    assert said[3].startswith("base model: DIFFERENT")
    assert said[-1] == "verdict: DIFFERENT"


def test_weights_in_another_order_are_seen_in_bfloat16(folder: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.0.self_attn.k_proj.weight"
        tensors[name] = tensors[name].flip(0)

    spoilt = changed(folder, tmp_path / "spoilt", spoil)
    assert not check(spoilt, against=folder, dtype="bfloat16")[0]


def test_an_adapter_with_another_scale_is_seen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget_alpha(rules: Any, module: str) -> float:
        return 1.0

    monkeypatch.setattr("loraplex_adapters.peft_config.LoraRules.scale_of", forget_alpha)
    is_equal, said = check(folder, folder / "lora")
    assert not is_equal
    assert said[3].startswith("base model: equal")
    assert said[4].startswith("with the adapter: DIFFERENT")


def run(monkeypatch: pytest.MonkeyPatch, *args: object) -> int:
    monkeypatch.setattr("sys.argv", ["model_check", *map(str, args)])
    return model_check.main()


def test_the_exit_code_is_the_verdict(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert run(monkeypatch, folder) == model_check.EQUAL

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][3] = 9

    spoilt = changed(folder, tmp_path / "spoilt", spoil)
    assert run(monkeypatch, spoilt, "--against", folder) == model_check.DIFFERENT
    capsys.readouterr()
    (tmp_path / "empty").mkdir()
    assert run(monkeypatch, folder, "--adapter", tmp_path / "empty") == model_check.NOT_COMPARED
    assert "adapter_config.json is missing" in capsys.readouterr().out
    assert run(monkeypatch, tmp_path / "nowhere") == model_check.NOT_COMPARED
    monkeypatch.setattr(model_check, "PACKAGES", ("transformers", "peft_of_tomorrow"))
    assert run(monkeypatch, folder) == model_check.NOT_COMPARED
    assert "it takes peft_of_tomorrow; pip install 'loraplex[engine]'" in capsys.readouterr().out
