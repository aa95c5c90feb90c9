"""The base model's folder: where it is, and having it made."""

import asyncio
import sys
from pathlib import Path

from loraplex_platform.config import Settings, inherited_environment

DEMO_MODEL = "smollm2-135m-instruct"


class ModelNotPrepared(Exception):
    """The base model could not be prepared; the importer has said why."""


def is_demo(settings: Settings) -> bool:
    return settings.model in (None, DEMO_MODEL)


def expected_folder(settings: Settings) -> Path:
    """Where the base model is, or will be once it is prepared."""
    name = settings.model or DEMO_MODEL
    if (Path(name) / "config.json").is_file():
        return Path(name).resolve()
    if _is_gguf(name):
        return settings.cache / "models" / f"{Path(name).stem.lower()}-gguf"
    return settings.cache / "models" / name.lower().replace("/", "--")


def served_name(settings: Settings) -> str:
    """The base model's id for clients: what was asked for, or the folder's name."""
    name = settings.model or DEMO_MODEL
    if settings.served_model_name is not None:
        return settings.served_model_name
    is_local = Path(name).is_dir() or _is_gguf(name)
    return expected_folder(settings).name if is_local else name


def _is_gguf(name: str) -> bool:
    return name.endswith(".gguf") and Path(name).is_file()


async def prepare(settings: Settings) -> Path:
    """Have the engine's importer fetch and convert the model; quick when that is done already."""
    folder = expected_folder(settings)
    if (folder / "config.json").is_file() and not _is_gguf(settings.model or DEMO_MODEL):
        return folder
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loraplex_engine.importer",
        settings.model or DEMO_MODEL, str(settings.cache),
        env=inherited_environment(), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await child.communicate()
    if child.returncode != 0:
        raise ModelNotPrepared("the base model could not be prepared; the importer says why above")
    return Path(output.decode().splitlines()[-1])
