"""`loraplex batches`: hand in jobs, watch them, stop and steer them; `loraplex worker` and `beat`."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loraplex_adapters.blobs import BlobStore
from loraplex_platform.batches.schemas import FINAL, BatchObject, CreateBatch
from loraplex_platform.batches.service import BatchService
from loraplex_platform.batches.service import Progress as JobProgress
from loraplex_platform.command import TenantOption, open_database, run
from loraplex_platform.config import PREFIX, load_settings
from loraplex_platform.db.database import Database
from loraplex_platform.files.schemas import UploadForm
from loraplex_platform.files.service import FileService
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE, Principal
from loraplex_platform.supervision.base_model import expected_folder, served_name
from loraplex_platform.supervision.processes import engine_address
from loraplex_platform.tenants.service import TenantService

POLL_S = 0.5
COMMAND = "command"  # in the place of a key's id: who can run commands needs none

batches = typer.Typer(no_args_is_help=True, help="Batch jobs.")
BatchArgument = Annotated[str, typer.Argument(help="The batch's id.")]


@batches.command("submit")
def submit_batch(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Lines of JSON.")],
    tenant: TenantOption,
    endpoint: Annotated[str, typer.Option(help="Of all lines.")] = "/v1/chat/completions",
    priority: Annotated[int, typer.Option(help="Among the tenant's own jobs.")] = 0,
    watch: Annotated[bool, typer.Option("--watch", help="Stay until it is over.")] = False,
    output: Annotated[Path | None, typer.Option(help="Where --watch puts the answers.")] = None,
) -> None:
    """Hand in a file of requests; prints the batch's id."""

    async def work() -> None:
        async with open_database() as database:
            principal = await _principal(database, tenant)
            (files, service), by = _services(database), COMMAND_LINE.actor
            with file.open("rb") as content:
                made = await files.create(
                    principal, UploadForm(purpose="batch"), file.name, content, by=by
                )
            order = CreateBatch.model_validate(
                {"input_file_id": made.id, "endpoint": endpoint, "completion_window": "24h"}
                | {"priority": priority}
            )
            batch = await service.create(principal, order, by=by)
            typer.echo(batch.id)
            if watch:
                over = await _watch(service, principal, batch.id)
                await _tell(files, principal, over, output)

    run(work())


@batches.command("watch")
def watch_batch(batch_id: BatchArgument, tenant: TenantOption) -> None:
    """Show a job's progress until it is over."""

    async def work() -> None:
        async with open_database() as database:
            principal = await _principal(database, tenant)
            files, service = _services(database)
            over = await _watch(service, principal, batch_id)
            await _tell(files, principal, over, None)

    run(work())


@batches.command("list")
def list_batches(
    tenant: Annotated[str | None, typer.Option(help="One tenant's; all when absent.")] = None,
) -> None:
    """List the newest jobs: id, status, lines done, failed and in all, lines a second."""

    async def work() -> None:
        async with open_database() as database:
            tenants = TenantService(database, SystemClock())
            tenant_id = None if tenant is None else (await tenants.get(tenant)).id
            _, service = _services(database)
            for job in await service.progress(tenant_id):
                state = "paused" if job.is_paused else job.status
                counts = f"{job.completed}+{job.failed}/{job.total}"
                typer.echo(f"{job.batch_id}  {state}  {counts}  {job.lines_per_s:.1f}/s")

    run(work())


@batches.command("cancel")
def cancel_batch(batch_id: BatchArgument, tenant: TenantOption) -> None:
    """Stop a job; lines at work may end, and what is done stays."""

    async def work() -> None:
        async with open_database() as database:
            _, service = _services(database)
            owner = await _principal(database, tenant)
            batch = await service.cancel(owner, batch_id, by=COMMAND_LINE.actor)
            typer.echo(f"{batch.id}  {batch.status}")

    run(work())


@batches.command("pause")
def pause_batch(batch_id: BatchArgument) -> None:
    """Start no more lines of a job; its window goes on."""

    async def work() -> None:
        async with open_database() as database:
            await _services(database)[1].pause(batch_id)

    run(work())


@batches.command("resume")
def resume_batch(batch_id: BatchArgument) -> None:
    """Go on with a paused job."""

    async def work() -> None:
        async with open_database() as database:
            await _services(database)[1].resume(batch_id)

    run(work())


def worker(
    processes: Annotated[int, typer.Option(min=1, help="Dispatchers on this machine.")] = 1,
) -> None:
    """Run batch jobs in Celery processes, for servers with LORAPLEX_BATCH_DISPATCHER=celery."""
    _become("worker", f"--processes={processes}")


def beat() -> None:
    """Ring at the workers' door every few seconds; one of these is enough."""
    _become("beat")


def _become(role: str, *options: str) -> None:
    """Celery takes this process over; engine and model are those of the server of this home."""

    async def environment() -> dict[str, str]:
        settings = load_settings()
        own = {
            "HOME": str(settings.home.absolute()),
            "MODEL": str(expected_folder(settings)),
            "SERVED_MODEL_NAME": served_name(settings),
            "ENGINE_ADDRESS": engine_address(settings),
        }
        return {PREFIX + name: value for name, value in own.items()}

    given = os.environ | run(environment())
    command = [sys.executable, "-m", "loraplex_platform.jobs", role, *options]
    os.execve(sys.executable, command, given)


def _services(database: Database) -> tuple[FileService, BatchService]:
    """No bell: dispatchers find the work with their next tick."""
    clock = SystemClock()
    files = FileService(database, BlobStore(load_settings().files), clock)
    return files, BatchService(database, None, clock)


async def _principal(database: Database, tenant: str) -> Principal:
    tenants = TenantService(database, SystemClock())
    owner = await tenants.get(tenant)
    return Principal(owner.id, (await tenants.default_project(owner)).id, COMMAND)


async def _watch(service: BatchService, principal: Principal, batch_id: str) -> BatchObject:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("validating", total=None, rate="")
        while True:
            batch = await service.get(principal, batch_id)
            jobs = await service.progress(principal.tenant_id)
            rate = next((_rate(job) for job in jobs if job.batch_id == batch_id), "")
            counts = batch.request_counts
            bar.update(
                task,
                description=batch.status,
                total=counts.total or None,
                completed=counts.completed + counts.failed,
                rate=rate,
            )
            if batch.status in FINAL:
                return batch
            await asyncio.sleep(POLL_S)


def _rate(job: JobProgress) -> str:
    until = "" if job.ends_at is None else f", until {job.ends_at.astimezone():%H:%M:%S}"
    return f"{job.lines_per_s:.1f}/s{until}"


async def _tell(
    files: FileService, principal: Principal, batch: BatchObject, output: Path | None
) -> None:
    for error in [] if batch.errors is None else batch.errors.data:
        where = "" if error.line is None else f"line {error.line}: "
        typer.echo(f"error: {where}{error.message} ({error.code})", err=True)
    typer.echo(f"{batch.status}  output {batch.output_file_id}  errors {batch.error_file_id}")
    if output is not None and batch.output_file_id is not None:
        _, stream = await files.open(principal, batch.output_file_id)
        with stream, output.open("wb") as target:
            await asyncio.to_thread(shutil.copyfileobj, stream, target)
    if batch.status == "failed":
        raise typer.Exit(1)
