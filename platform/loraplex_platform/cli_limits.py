"""`loraplex limits`: what tenants, projects and keys may take, and what they were refused."""

from datetime import timedelta
from typing import Annotated

import typer

from loraplex_platform.admission.limits import DIMENSIONS
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.auth.service import KeyService
from loraplex_platform.command import TenantOption, open_database, run
from loraplex_platform.config import load_settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.errors import NotFound
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.tenants.service import TenantService

limits = typer.Typer(no_args_is_help=True, help="Limits, and what they turned away.")

DimensionArgument = Annotated[str, typer.Argument(help=", ".join(DIMENSIONS))]
KeyOption = Annotated[str | None, typer.Option("--key", help="One key, by its public id.")]
ProjectOption = Annotated[
    bool, typer.Option("--project", help="The tenant's project instead of the tenant as a whole.")
]


@limits.command("set")
def set_limit(
    tenant: TenantOption,
    dimension: DimensionArgument,
    value: Annotated[int, typer.Argument(help="0 admits nothing.")],
    project: ProjectOption = False,
    key: KeyOption = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse while the shared store is away.")
    ] = False,
) -> None:
    """Set a limit; running servers follow within a second."""

    async def work() -> None:
        async with open_database() as database:
            subject = await _subject(database, tenant, project, key)
            await LimitService(database, SystemClock()).set(
                subject, dimension, value, strict=strict
            )

    run(work())


@limits.command("remove")
def remove_limit(
    tenant: TenantOption,
    dimension: DimensionArgument,
    project: ProjectOption = False,
    key: KeyOption = None,
) -> None:
    """Lift a limit."""

    async def work() -> None:
        async with open_database() as database:
            subject = await _subject(database, tenant, project, key)
            await LimitService(database, SystemClock()).remove(subject, dimension)

    run(work())


@limits.command("list")
def list_limits(tenant: TenantOption) -> None:
    """List a tenant's limits: level, subject, dimension, value."""

    async def work() -> None:
        async with open_database() as database:
            owner = await TenantService(database, SystemClock()).get(tenant)
            for rule in await LimitService(database, SystemClock()).of_tenant(owner.id):
                strict = "  strict" if rule.strict else ""
                typer.echo(f"{rule.level}  {rule.subject}  {rule.dimension}  {rule.value}{strict}")

    run(work())


@limits.command("rejections")
def list_rejections(
    tenant: TenantOption,
    hours: Annotated[float, typer.Option(help="How far back.")] = 24.0,
) -> None:
    """Why requests were turned away: by minute, key, reason and limit."""

    async def work() -> None:
        async with open_database() as database:
            owner = await TenantService(database, SystemClock()).get(tenant)
            service = LimitService(database, SystemClock())
            for row in await service.rejections(owner.id, timedelta(hours=hours)):
                typer.echo(
                    f"{row.minute:%FT%H:%M}  {row.key_id}  {row.reason}  {row.limit}  {row.count}"
                )

    run(work())


async def _subject(database: Database, name: str, project: bool, key: str | None) -> Subject:
    tenants = TenantService(database, SystemClock())
    owner = await tenants.get(name)
    if key is not None:
        secrets = Secrets.load_or_create(load_settings().home)
        of_tenant = await KeyService(database, secrets, SystemClock()).of_tenant(owner.id)
        if key not in {row.id for row in of_tenant}:
            raise NotFound(f"{name!r} has no key {key!r}", param="key")
        return Subject(owner.id, "key", key)
    if project:
        return Subject(owner.id, "project", (await tenants.default_project(owner)).id)
    return Subject(owner.id, "tenant", owner.id)
