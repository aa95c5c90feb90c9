import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from loraplex_engine.errors import ModelUnavailable
from loraplex_engine.importer import DEMO_MODEL, import_model, make


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")


def test_folder_is_used_where_it_lies(tmp_path: Path) -> None:
    write_model(tmp_path / "mine")
    assert import_model(str(tmp_path / "mine"), tmp_path / "cache") == tmp_path / "mine"
    assert not (tmp_path / "cache").exists()


def test_model_in_the_cache_is_not_made_again(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "acme--tiny")
    assert import_model("Acme/Tiny", tmp_path) == tmp_path / "models" / "acme--tiny"


def test_unknown_name_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="neither a folder") as caught:
        import_model("no such/model/at all", tmp_path)
    assert caught.value.data["model"] == "no such/model/at all"
    assert not list((tmp_path / "models").glob("no*"))


@pytest.mark.slow
def test_demo_model_is_converted_once_for_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loraplex_engine.importer", DEMO_MODEL, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    both = [subprocess.Popen(command, env=env, text=True, stdout=-1, stderr=-1) for _ in range(2)]
    said = [child.communicate() for child in both]

    assert [child.returncode for child in both] == [0, 0], said
    folder = tmp_path / "models" / DEMO_MODEL
    assert {out.splitlines()[-1] for out, _ in said} == {str(folder)}
    assert sum("Converting" in err for _, err in said) == 1
    config = json.loads((folder / "config.json").read_text())
    assert (config["rms_norm_eps"], config["dtype"]) == (1e-5, "bfloat16")
    assert "im_start" in (folder / "chat_template.jinja").read_text()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(tokenizer.encode("1234").ids) == 4  # SmolLM's digits are tokens of their own
    assert [p.name for p in (tmp_path / "models").iterdir() if p.is_dir()] == [DEMO_MODEL]


def test_failed_import_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable):
        make("../nowhere", tmp_path / "model")
    assert not list(tmp_path.iterdir())
