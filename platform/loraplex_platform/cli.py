"""The command line: a thin list of commands, and the composition root."""

from dataclasses import replace
from typing import Annotated

import typer

from loraplex_platform.auth.service import KeyService
from loraplex_platform.cli_adapters import adapters
from loraplex_platform.cli_batches import batches, beat, worker
from loraplex_platform.cli_billing import billing
from loraplex_platform.cli_limits import limits
from loraplex_platform.cli_models import models
from loraplex_platform.cli_operators import operators
from loraplex_platform.cli_plans import plans
from loraplex_platform.cli_tenants import tenants
from loraplex_platform.command import TenantOption, open_database, run
from loraplex_platform.config import load_settings
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.observability.logging import configure_logging
from loraplex_platform.supervision.doctor import examine
from loraplex_platform.supervision.serve import serve
from loraplex_platform.tenants.service import TenantService

app = typer.Typer(no_args_is_help=True, help="Serve many LoRA adapters to many tenants.")
keys = typer.Typer(no_args_is_help=True, help="API keys.")
app.add_typer(tenants, name="tenants")
app.add_typer(keys, name="keys")
app.add_typer(adapters, name="adapters")
app.add_typer(models, name="models")
app.add_typer(limits, name="limits")
app.add_typer(batches, name="batches")
app.command("worker")(worker)
app.command("beat")(beat)
app.add_typer(operators, name="operators")
app.add_typer(plans, name="plans")

app.add_typer(billing, name="billing")

ModelOption = Annotated[
    str | None,
    typer.Option(help="A Hugging Face folder, GGUF file or hub id; the demo model when absent."),
]


@app.command("serve")
def serve_command(
    model: ModelOption = None,
    host: Annotated[str | None, typer.Option(help="Address of the API.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the API.")] = None,
) -> None:
    """Prepare what is missing and serve: engine and API, supervised, until Ctrl-C."""

    async def work() -> None:
        given = {"model": model, "host": host, "port": port}
        chosen = {name: value for name, value in given.items() if value is not None}
        settings = replace(load_settings(), **chosen)  # type: ignore[arg-type]  # typer checked them
        configure_logging(settings.log_level)
        await serve(settings)

    run(work())


@app.command("doctor")
def doctor_command() -> None:
    """Check device, packages, database and model; say what is wrong and how to mend it."""

    async def work() -> None:
        findings = await examine(load_settings())
        for finding in findings:
            typer.echo(str(finding))
        if not all(finding.is_well for finding in findings):
            raise typer.Exit(1)

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
