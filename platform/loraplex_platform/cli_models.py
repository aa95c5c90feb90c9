"""`loraplex models`: base models, by the engine's own programs; nothing here loads torch."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from loraplex_platform.command import run
from loraplex_platform.config import inherited_environment, load_settings
from loraplex_platform.supervision.base_model import DEMO_MODEL, prepare

models = typer.Typer(no_args_is_help=True, help="Base models.")

ModelArgument = Annotated[str, typer.Argument(help="Folder, GGUF file or hub id.")]


@models.command("import")
def import_model(model: ModelArgument = DEMO_MODEL) -> None:
    """Fetch and convert a base model ahead of `serve`; prints its folder on the last line."""

    async def work() -> None:
        typer.echo(str(await prepare(replace(load_settings(), model=model))))

    run(work())


@models.command("list")
def list_models() -> None:
    """List the models in the cache: architecture, type, size, and whether they can be served."""
    run(_run_engine("shelf", [str(load_settings().cache)]))


@models.command("check")
def check_model(
    model: ModelArgument = DEMO_MODEL,
    adapter: Annotated[Path | None, typer.Option(help="A folder that PEFT saved.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="What transformers reads instead: a folder, or the GGUF file."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
) -> None:
    """Compare a model, and an adapter on it, with transformers and PEFT.

    The exit code is 0 if both say the same, 3 if not, 2 if they could not be compared.
    """

    async def work() -> None:
        folder = await prepare(replace(load_settings(), model=model))
        options = {"--adapter": adapter, "--against": against, "--dtype": dtype}
        given = [part for name, value in options.items() if value for part in (name, str(value))]
        await _run_engine("model_check", [str(folder), *given])

    run(work())


async def _run_engine(module: str, args: Sequence[str]) -> None:
    """Run a module of the engine, repeat what it says, and end as it ended if that was badly."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"loraplex_engine.{module}", *args,
        env=inherited_environment() | {"PYTHONUNBUFFERED": "1"}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    async for line in child.stdout:
        typer.echo(line.decode(), nl=False)
    code = await child.wait()
    if code:
        raise typer.Exit(code)
