"""`loraplex operators`: the platform's own people and admin keys."""

from typing import Annotated

import typer

from loraplex_platform.auth.admin_keys import AdminKeyService
from loraplex_platform.command import open_database, run
from loraplex_platform.config import load_settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE, OPERATOR_ROLES
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.service import PeopleService

operators = typer.Typer(no_args_is_help=True, help="The platform's staff and their admin keys.")

RoleOption = Annotated[str, typer.Option(help=", ".join(OPERATOR_ROLES))]


@operators.command("create")
def create_operator(email: str, role: RoleOption = "operator", name: str = "") -> None:
    """Invite one of the staff; the link to their password is printed once, on the last line."""

    async def work() -> None:
        async with open_database() as database:
            invited = await _people(database).invite(email, role, name=name)
        typer.echo(f"A link for {invited.person.email}, good for one use:", err=True)
        typer.echo(_link(invited.token))

    run(work())


@operators.command("reset")
def reset_operator(email: str) -> None:
    """A link to a new password for one of the staff."""

    async def work() -> None:
        async with open_database() as database:
            people = _people(database)
            person = await people.with_email(email)
            token = (await people.reset(COMMAND_LINE, person.tenant_id, person.id)).token
        typer.echo(_link(token))

    run(work())


@operators.command("list")
def list_operators() -> None:
    """List the staff with their roles."""

    async def work() -> None:
        async with open_database() as database:
            for person in await _people(database).page(COMMAND_LINE, None, limit=1000):
                typer.echo(f"{person.email}  {person.id}  {person.role}  {person.state}")

    run(work())


@operators.command("key")
def create_admin_key(name: str, role: RoleOption = "operator") -> None:
    """Create an admin key for /api/admin/v1; it is printed once, alone on the last line."""

    async def work() -> None:
        secrets = Secrets.load_or_create(load_settings().home)
        async with open_database() as database:
            key = await AdminKeyService(database, secrets, SystemClock()).create(name, role)
        typer.echo("An admin key; it is not shown again:", err=True)
        typer.echo(str(key))

    run(work())


def _people(database: Database) -> PeopleService:
    secrets = Secrets.load_or_create(load_settings().home)
    return PeopleService(database, secrets, Passwords(), SystemClock())


def _link(token: str) -> str:
    settings = load_settings()
    return f"http://{settings.host}:{settings.port}/admin/link#{token}"
