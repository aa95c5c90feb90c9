"""The command line: a thin list of commands, and the composition root."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

import typer

from loraplex_platform.auth.service import KeyService
from loraplex_platform.config import load_settings
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.errors import PlatformError
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.tenants.schemas import TenantChange
from loraplex_platform.tenants.service import TenantService

app = typer.Typer(no_args_is_help=True, help="Serve many LoRA adapters to many tenants.")
tenants = typer.Typer(no_args_is_help=True, help="Tenants and their standing.")
keys = typer.Typer(no_args_is_help=True, help="API keys.")
app.add_typer(tenants, name="tenants")
app.add_typer(keys, name="keys")

Result = TypeVar("Result")
TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's name.")]


@asynccontextmanager
async def open_database() -> AsyncIterator[Database]:
    """The configured database, migrated."""
    settings = load_settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(upgrade, settings.database)
    database = Database(settings.database)
    try:
        yield database
    finally:
        await database.close()


def run(work: Coroutine[None, None, Result]) -> Result:
    """Run a command's body; what an operator did wrong is one line, not a traceback."""
    try:
        return asyncio.run(work)
    except PlatformError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(1) from error


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
            for tenant in await TenantService(database, SystemClock()).list():
                typer.echo(f"{tenant.name}  {tenant.id}  {tenant.weight:g}  {tenant.max_tier}")

    run(work())


@tenants.command("set")
def set_tenant(
    name: str,
    weight: Annotated[float | None, typer.Option(help="Share of the engine.")] = None,
    max_tier: Annotated[str | None, typer.Option(help="The best tier it may use.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Soft cap on sequences.")] = None,
    kv_share: Annotated[float | None, typer.Option(help="Soft cap on blocks, 0 to 1.")] = None,
) -> None:
    """Change a tenant's standing; running servers see it with the next request."""

    async def work() -> None:
        async with open_database() as database:
            change = TenantChange(weight, max_tier, max_running, kv_share)
            await TenantService(database, SystemClock()).set(name, change)

    run(work())


@keys.command("create")
def create_key(tenant: TenantOption, name: str = "") -> None:
    """Create a key; it is printed once, alone on the last line."""

    async def work() -> None:
        settings = load_settings()
        async with open_database() as database:
            service = TenantService(database, SystemClock())
            owner = await service.get(tenant)
            project = await service.default_project(owner)
            secrets = Secrets.load_or_create(settings.home)
            key = await KeyService(database, secrets, SystemClock()).create(
                owner.id, project.id, name=name
            )
        typer.echo(f"A key for {tenant}; it is not shown again:", err=True)
        typer.echo(str(key))

    run(work())


@keys.command("list")
def list_keys(tenant: TenantOption) -> None:
    """List a tenant's keys by their public ids."""

    async def work() -> None:
        settings = load_settings()
        async with open_database() as database:
            owner = await TenantService(database, SystemClock()).get(tenant)
            service = KeyService(database, Secrets.load_or_create(settings.home), SystemClock())
            for key in await service.of_tenant(owner.id):
                state = "revoked" if key.revoked_at else "active"
                typer.echo(f"{key.id}  …{key.last_four}  {state}  {key.created_at:%F}  {key.name}")

    run(work())


@keys.command("revoke")
def revoke_key(key_id: str) -> None:
    """Take a key out of use, by its public id; running servers follow within a second."""

    async def work() -> None:
        settings = load_settings()
        async with open_database() as database:
            secrets = Secrets.load_or_create(settings.home)
            await KeyService(database, secrets, SystemClock()).revoke(key_id)

    run(work())


def main() -> None:
    app()
