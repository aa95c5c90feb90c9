"""The command line, also beside a running server."""

import asyncio
import sys
from pathlib import Path

import pytest
from openai import AuthenticationError
from tests.platform_stand import Served
from typer.testing import CliRunner, Result

from loraplex_platform.auth.keys import parse_key
from loraplex_platform.cli import app
from loraplex_platform.config import Settings


def loraplex(home: Path, *args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"LORAPLEX_HOME": str(home)})


def test_first_command_makes_the_home_and_its_database(tmp_path: Path) -> None:
    home = tmp_path / "new"
    assert loraplex(home, "tenants", "create", "acme").exit_code == 0
    listed = loraplex(home, "tenants", "list")
    assert listed.stdout.startswith("acme  ten_")
    assert {path.name for path in home.iterdir()} >= {"loraplex.sqlite3"}


def test_tenant_settings_are_shown_after_set(settings: Settings) -> None:
    loraplex(settings.home, "tenants", "create", "acme")
    done = loraplex(
        settings.home, "tenants", "set", "acme", "--weight", "2.5", "--max-tier", "standard"
    )
    assert done.exit_code == 0
    listed = loraplex(settings.home, "tenants", "list").stdout.split()
    assert listed[-2:] == ["2.5", "standard"]


@pytest.mark.parametrize(
    "args",
    [
        ("tenants", "create", "acme"),
        ("tenants", "create", "../etc"),
        ("tenants", "set", "nobody"),
        ("tenants", "set", "acme", "--weight", "0"),
        ("tenants", "set", "acme", "--weight", "nan"),
        ("tenants", "set", "acme", "--max-tier", "gold"),
        ("keys", "create", "--tenant", "nobody"),
        ("keys", "revoke", "nothing"),
    ],
)
def test_mistake_is_one_line_and_exit_code_1(settings: Settings, args: tuple[str, ...]) -> None:
    loraplex(settings.home, "tenants", "create", "acme")
    result = loraplex(settings.home, *args)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_key_is_alone_on_the_last_line_and_never_shown_again(settings: Settings) -> None:
    loraplex(settings.home, "tenants", "create", "acme")
    created = loraplex(settings.home, "keys", "create", "--tenant", "acme", "--name", "ci")
    key = parse_key(created.stdout.splitlines()[-1])
    assert key is not None
    listed = loraplex(settings.home, "keys", "list", "--tenant", "acme").output
    assert key.id in listed
    assert "ci" in listed
    assert key.secret not in listed


def test_revoked_key_is_listed_as_revoked(settings: Settings) -> None:
    loraplex(settings.home, "tenants", "create", "acme")
    created = loraplex(settings.home, "keys", "create", "--tenant", "acme").stdout.split()[-1]
    key = parse_key(created)
    assert key is not None
    loraplex(settings.home, "keys", "revoke", key.id)
    assert "revoked" in loraplex(settings.home, "keys", "list", "--tenant", "acme").stdout


async def from_another_process(served: Served, settings: Settings, *args: str) -> str:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loraplex_platform",
        *args,
        env={"PYTHONPATH": ":".join(sys.path), "LORAPLEX_HOME": str(settings.home)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await child.communicate()
    assert child.returncode == 0
    return output.decode().splitlines()[-1] if output else ""


async def test_commands_take_effect_in_a_running_server_within_a_second(
    served: Served, settings: Settings
) -> None:
    key = await from_another_process(served, settings, "keys", "create", "--tenant", "acme")
    await served.client(key).models.list()
    parsed = parse_key(key)
    assert parsed is not None
    await from_another_process(served, settings, "keys", "revoke", parsed.id)
    await asyncio.sleep(1)
    with pytest.raises(AuthenticationError):
        await served.client(key).models.list()
