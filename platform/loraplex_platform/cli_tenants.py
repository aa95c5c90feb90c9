"""`loraplex tenants`: tenants, their standing, and how they go."""

import asyncio
import shutil
from pathlib import Path
from typing import Annotated

import typer

import loraplex_platform.models  # noqa: F401 (an export walks every table)
from loraplex_adapters.blobs import BlobStore
from loraplex_adapters.store import AdapterStore
from loraplex_platform.command import open_database, run
from loraplex_platform.config import load_settings
from loraplex_platform.control.exports import TenantExportService
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.tenants.schemas import TenantChange, TenantState
from loraplex_platform.tenants.service import TenantService

tenants = typer.Typer(no_args_is_help=True, help="Tenants, their standing, and how they go.")


@tenants.command("create")
def create_tenant(
    name: str,
    weight: Annotated[float | None, typer.Option(help="Share of the engine.")] = None,
    max_tier: Annotated[str | None, typer.Option(help="The best tier it may use.")] = None,
) -> None:
    """Create a tenant with its project `default`."""

    async def work() -> None:
        async with open_database() as database:
            change = TenantChange(weight=weight, max_tier=max_tier)
            tenant = await TenantService(database, SystemClock()).create(name, change)
        typer.echo(f"{tenant.name}  {tenant.id}")

    run(work())


@tenants.command("list")
def list_tenants() -> None:
    """List tenants with their weight and best tier."""

    async def work() -> None:
        async with open_database() as database:
            service = TenantService(database, SystemClock())
            for tenant in await service.list():
                standing = await service.standing(tenant)
                facts = f"{tenant.state}  {standing.weight:g}  {standing.max_tier}"
                typer.echo(f"{tenant.name}  {tenant.id}  {facts}")

    run(work())


@tenants.command("set")
def set_tenant(
    name: str,
    weight: Annotated[float | None, typer.Option(help="Share of the engine.")] = None,
    max_tier: Annotated[str | None, typer.Option(help="The best tier it may use.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Soft cap on sequences.")] = None,
    kv_share: Annotated[float | None, typer.Option(help="Soft cap on blocks, 0 to 1.")] = None,
    prefix_tokens: Annotated[
        int | None, typer.Option(help="Tokens of registered prefixes that are kept warm.")
    ] = None,
) -> None:
    """Change a tenant's standing; running servers follow within a second."""

    async def work() -> None:
        async with open_database() as database:
            change = TenantChange(weight, max_tier, max_running, kv_share, prefix_tokens)
            await TenantService(database, SystemClock()).set(name, change)

    run(work())


@tenants.command("suspend")
def suspend_tenant(name: str) -> None:
    """Refuse its keys and end its requests, until it is resumed."""
    _move(name, "suspended")


@tenants.command("resume")
def resume_tenant(name: str) -> None:
    """Let a suspended tenant work again."""
    _move(name, "active")


@tenants.command("close")
def close_tenant(name: str) -> None:
    """End its keys for good; a running server exports its data, then erases what it stored."""
    _move(name, "closing")


@tenants.command("export")
def export_tenant(
    name: str, to: Annotated[Path, typer.Option(help="The .tar.gz to write.")]
) -> None:
    """Write a tenant's data into one archive: rows as lines of JSON, files, adapters."""

    async def work() -> None:
        settings, clock = load_settings(), SystemClock()
        async with open_database() as database:
            tenant = await TenantService(database, clock).get(name)
            store = AdapterStore(settings.adapter_store)
            exports = TenantExportService(database, BlobStore(settings.files), store, clock)
            made = await exports.make(tenant, COMMAND_LINE.actor)
            await asyncio.to_thread(shutil.move, made, to)

    run(work())


def _move(name: str, state: TenantState) -> None:
    async def work() -> None:
        async with open_database() as database:
            service = TenantService(database, SystemClock())
            await service.move(COMMAND_LINE, (await service.get(name)).id, state)

    run(work())
