"""`loraplex models`: list and check, in processes of the engine."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.engine.tiny import make_adapter, make_model
from typer.testing import CliRunner, Result

from loraplex_platform.cli import app
from loraplex_platform.config import Settings
from loraplex_platform.supervision.base_model import expected_folder, served_name

# PEFT asks transformers for a property that transformers is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def loraplex(cache: Path, *args: object) -> Result:
    env = {"LORAPLEX_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    return CliRunner().invoke(app, ["models", *map(str, args)], env=env)


def write_model(folder: Path, config: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"\0" * 20_000_000)


def test_models_are_listed_with_what_cannot_be_served(tmp_path: Path) -> None:
    shelf = tmp_path / "models"
    llama = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float16"}
    write_model(shelf / "acme--tiny", llama)
    write_model(shelf / "bert", {"architectures": ["BertModel"]})
    write_model(shelf / ".acme--half-made", llama)
    (shelf / "empty").mkdir()
    assert loraplex(tmp_path, "list").stdout.splitlines() == [
        "acme--tiny  LlamaForCausalLM  float16  0.02 GB",
        "bert  BertModel  float32  0.02 GB  not supported",
    ]


def test_a_cache_without_models_lists_none(tmp_path: Path) -> None:
    listed = loraplex(tmp_path, "list")
    assert (listed.exit_code, listed.stdout) == (0, "")


def test_check_says_what_it_saw_and_ends_with_its_verdict(tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny", num_hidden_layers=1)
    make_adapter(model, tmp_path / "lora", rank=2, alpha=4, modules=["v_proj"], seed=0)
    same = loraplex(tmp_path, "check", tmp_path / "tiny", "--adapter", tmp_path / "lora")
    assert same.exit_code == 0, same.output
    assert same.stdout.splitlines()[-1] == "verdict: equal"
    make_model(tmp_path / "other", num_hidden_layers=1, seed=1)
    differs = loraplex(tmp_path, "check", tmp_path / "tiny", "--against", tmp_path / "other")
    assert differs.exit_code == 3, differs.output
    assert differs.stdout.splitlines()[-1] == "verdict: DIFFERENT"


def test_check_of_what_is_not_supported_names_what_is(tmp_path: Path) -> None:
    write_model(tmp_path / "bert", {"architectures": ["BertModel"]})
    done = loraplex(tmp_path, "check", tmp_path / "bert")
    assert done.exit_code == 2
    assert "BertModel is not supported; these are: LlamaForCausalLM, " in done.stdout


def test_a_gguf_file_has_a_folder_of_its_name_in_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "Gemma-3.Q4.gguf"
    file.write_bytes(b"GGUF")
    settings = Settings(cache=tmp_path / "cache", model=str(file))
    assert expected_folder(settings) == tmp_path / "cache" / "models" / "gemma-3.q4-gguf"
    assert served_name(settings) == "gemma-3.q4-gguf"
