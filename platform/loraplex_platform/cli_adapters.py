"""`loraplex adapters`: a tenant's adapters, judged, named, shifted and rolled back."""

import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from loraplex_adapters.errors import MissingFile
from loraplex_adapters.store import AdapterStore, StoredAdapter
from loraplex_platform.admission.stock import check_adapter_bytes
from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.catalogue.publishing import Published
from loraplex_platform.catalogue.routes import Address
from loraplex_platform.catalogue.service import CatalogueService, Entry
from loraplex_platform.command import TenantOption, open_database, run
from loraplex_platform.config import load_settings
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import COMMAND_LINE, Principal
from loraplex_platform.supervision.base_model import expected_folder, served_name
from loraplex_platform.tenants.service import TenantService

adapters = typer.Typer(no_args_is_help=True, help="Tenants' LoRA adapters.")
BY = COMMAND_LINE.actor
Result = TypeVar("Result")
Work = Callable[[CatalogueService, Principal], Awaitable[Result]]
NameArgument = Annotated[str, typer.Argument(help="A name, or a version of it: support@2.")]


@adapters.command("add")
def add_adapter(
    tenant: TenantOption,
    name: Annotated[str, typer.Option(help="What the tenant's requests call it.")],
    source: Annotated[
        str,
        typer.Argument(
            help="What PEFT's save_pretrained wrote: a folder, or owner/name of the hub."
        ),
    ],
    update: Annotated[
        bool, typer.Option("--update", help="Add a version to a name that there is.")
    ] = False,
) -> None:
    """Judge an adapter, store it and give it a name; running servers serve it at once."""

    settings = load_settings()

    async def work(service: CatalogueService, owner: Principal) -> tuple[Published, StoredAdapter]:
        service.check_name(name)
        if not update:
            await service.check_free(owner, name)
        with _folder_of(source, service) as folder:
            stored = await service.judge(
                folder, base_folder=expected_folder(settings), max_rank=settings.max_lora_rank
            )
        made = await service.publish(owner, name, stored, by=BY, activate=not update)
        return made, stored

    made, stored = _with_catalogue(tenant, work)
    for warning in stored.report.warnings:
        typer.echo(f"warning: {warning}", err=True)
    shown = f"{name}@{made.version.number}" if update else name
    typer.echo(f"{shown}  {stored.version[:12]}  rank {stored.report.rank}")


@adapters.command("list")
def list_adapters(tenant: TenantOption) -> None:
    """List a tenant's adapters with the versions they stand for."""
    found = _with_catalogue(tenant, lambda service, owner: service.of_tenant(owner.tenant_id))
    for adapter in found:
        size = f"{adapter.num_bytes / 2**20:.1f} MiB"
        typer.echo(f"{adapter.name}  {adapter.version[:12]}  rank {adapter.rank}  {size}")


@adapters.command("show")
def show_adapter(tenant: TenantOption, name: NameArgument) -> None:
    """Show what a name stands for, and the load report of each version."""
    entry = _with_catalogue(tenant, lambda service, owner: service.get(owner, name))
    _show(entry)
    for version in entry.versions:
        _show_version(version, with_modules=Address.parse(name).number is not None)


@adapters.command("alias")
def point_adapter(
    tenant: TenantOption,
    name: str,
    number: Annotated[int, typer.Argument(min=1, help="The version it is to stand for.")],
) -> None:
    """Let a name stand for one of its versions; requests that run end on the old one."""
    _change(tenant, name, {"current": number})


@adapters.command("canary")
def set_canary(
    tenant: TenantOption,
    name: str,
    number: Annotated[int, typer.Argument(min=1, help="The version to try.")],
    percent: Annotated[int, typer.Argument(min=0, max=100, help="Of the callers.")],
) -> None:
    """Answer a share of the callers, always the same ones, with another version."""
    _change(tenant, name, {"canary": {"version": number, "percent": percent}})


@adapters.command("pin")
def pin_adapter(
    tenant: TenantOption,
    name: str,
    off: Annotated[bool, typer.Option("--off", help="Let it go again.")] = False,
) -> None:
    """Keep a name's current version on the device; running servers follow within two seconds."""
    _change(tenant, name, {"pinned": not off})


@adapters.command("rollback")
def roll_back_adapter(tenant: TenantOption, name: str) -> None:
    """End a name's canary; without one, let it stand for what it stood for before."""
    _show(_with_catalogue(tenant, lambda service, owner: service.roll_back(owner, name, by=BY)))


@adapters.command("remove")
def remove_adapter(tenant: TenantOption, name: NameArgument) -> None:
    """Take a name away; requests that run with it go on."""
    _with_catalogue(tenant, lambda service, owner: service.delete(owner, name, by=BY))


@contextmanager
def _folder_of(source: str, service: CatalogueService) -> Iterator[Path]:
    """The folder itself; or, while it is needed, one of what the hub has under this id."""
    if Path(source).exists():
        yield Path(source)
        return
    with service.draft() as folder:
        command = [sys.executable, "-m", "loraplex_adapters.hub", source, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["it cannot be fetched"])[-1]
            raise InvalidRequest(reason, code=MissingFile.code)
        yield folder


def _change(tenant: str, name: str, values: dict[str, Any]) -> None:
    _show(
        _with_catalogue(tenant, lambda service, owner: service.change(owner, name, values, by=BY))
    )


def _show_version(version: Adapter, *, with_modules: bool) -> None:
    report = version.manifest
    typer.echo(
        f"{version.name}@{version.number}  {version.version[:12]}  rank {version.rank}"
        f"  {version.num_bytes / 2**20:.1f} MiB  {len(report['modules'])} modules"
        f", {len(report['unadapted'])} left alone"
        + (f", {len(added)} tokens added" if (added := report.get("added_tokens")) else "")
    )
    for module in report["modules"] if with_modules else ():
        parts = " ".join(module.get("parts", ()))
        figures = f"r={module['rank']}  ×{module['scale']:g}  {parts}"
        typer.echo(f"  {module['module']}  {figures}".rstrip())
    typer.echo(f"  {_parity(version.parity)}")
    for warning in report["warnings"]:
        typer.echo(f"  warning: {warning}")


def _parity(parity: dict[str, Any] | None) -> str:
    if parity is None:
        return "parity: not tested yet"
    if parity["error"] is None:
        return f"parity: could not be tested: {parity['reason']}"
    verdict = "passed" if parity["passed"] else "FAILED"
    sizes = [
        f"{(parity.get(f'{tier}_bytes') or 0) / 2**20:.1f} MiB of the {tier}"
        for tier in ("host", "device")
    ]
    figures = f"error {parity['error']:.1e}, effect {parity['effect']:.2f}"
    return f"parity: {verdict}, {figures}; takes {' and '.join(sizes)}"


def _show(entry: Entry) -> None:
    row = entry.name
    facts = [f"{row.name} → @{row.current}"]
    facts += [f"canary @{row.canary} {row.canary_percent} %"] if row.canary else []
    facts += [] if row.is_enabled else ["disabled"]
    facts += ["pinned"] if row.is_pinned else []
    typer.echo("  ".join(facts))


def _with_catalogue(tenant: str, work: Work[Result]) -> Result:
    """What `work` says of the catalogue and the tenant, as a command."""

    async def opened() -> Result:
        settings = load_settings()
        async with open_database() as database:
            owner = Principal((await TenantService(database, SystemClock()).get(tenant)).id, "", "")
            service = CatalogueService(
                database,
                AdapterStore(settings.adapter_store),
                SystemClock(),
                base_id=served_name(settings),
                quota=check_adapter_bytes,
            )
            return await work(service, owner)

    return run(opened())
