import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

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


def test_a_gguf_file_is_converted_anew_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[str] = []

    def convert(module: str, source: str, target: str) -> None:
        converted.append(Path(source).read_text())
        (Path(target) / "config.json").write_text("{}")
        (Path(target) / "model.safetensors").write_bytes(b"")

    monkeypatch.setattr("loraplex_engine.importer.run_child", convert)
    file = tmp_path / "Tiny.gguf"
    for content in ("one", "one", "other"):
        if not file.exists() or file.read_text() != content:
            file.write_text(content)
        folder = import_model(str(file), tmp_path / "cache")
    assert folder == tmp_path / "cache" / "models" / "tiny-gguf"
    assert converted == ["one", "other"]


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


FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"never fetched",
}


class Hub(BaseHTTPRequestHandler):
    """One repository, org/tiny, as the hub serves it to huggingface_hub."""

    asked: ClassVar[list[str]] = []
    commit = "0" * 40

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.asked.append(path)
        if "/resolve/" in path:
            body = FILES[path.rsplit("/", 1)[1]]
        elif "/tree/" in path:
            listed = [
                {"type": "file", "path": f, "size": len(b), "oid": f} for f, b in FILES.items()
            ]
            body = json.dumps(listed).encode()
        else:
            siblings = [{"rfilename": name} for name in FILES]
            body = json.dumps({"id": "Org/Tiny", "sha": self.commit, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", self.commit)
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_hub_id_is_downloaded_once_without_pickles(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [sys.executable, "-m", "loraplex_engine.importer", "Org/Tiny", str(tmp_path)]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "NO_PROXY": "127.0.0.1",
    }
    for attempt in range(2):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(tmp_path / "models" / "org--tiny")
        if attempt == 0:
            assert Hub.asked
            Hub.asked.clear()
    assert not Hub.asked
    server.shutdown()
    server.server_close()
    folder = tmp_path / "models" / "org--tiny"
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert not (folder / "pytorch_model.bin").exists()


def test_failed_import_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable):
        make("../nowhere", tmp_path / "model")
    assert not list(tmp_path.iterdir())
