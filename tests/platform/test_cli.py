"""The command line, also beside a running server."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from openai import AuthenticationError
from tests.adapters.folders import BASE, write_adapter, zeros_file
from tests.platform.batch_stand import jsonl, line
from tests.platform_stand import Seeded, Served, listening
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


def test_limits_are_listed_until_they_are_removed(settings: Settings) -> None:
    home, acme = settings.home, ("--tenant", "acme")
    loraplex(home, "tenants", "create", "acme")
    key = parse_key(loraplex(home, "keys", "create", *acme).stdout.strip())
    assert key is not None
    loraplex(home, "limits", "set", "requests_per_minute", "60", *acme)
    loraplex(home, "limits", "set", "tokens_per_day", "1000", *acme, "--project", "--strict")
    loraplex(home, "limits", "set", "concurrent_requests", "2", *acme, "--key", key.id)
    loraplex(home, "limits", "set", "requests_per_minute", "90", *acme)
    listed = [line.split() for line in loraplex(home, "limits", "list", *acme).stdout.splitlines()]
    assert [(line[0], *line[2:]) for line in listed] == [
        ("key", "concurrent_requests", "2"),
        ("project", "tokens_per_day", "1000", "strict"),
        ("tenant", "requests_per_minute", "90"),
    ]
    assert loraplex(home, "limits", "remove", "requests_per_minute", *acme).exit_code == 0
    assert len(loraplex(home, "limits", "list", *acme).stdout.splitlines()) == 2


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
        ("limits", "set", "requests_per_minute", "5", "--tenant", "nobody"),
        ("limits", "set", "requests_per_hour", "5", "--tenant", "acme"),
        ("limits", "set", "requests_per_minute", str(2**60), "--tenant", "acme"),
        ("limits", "set", "requests_per_minute", "5", "--tenant", "acme", "--key", "nothing"),
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


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model's folder, as far as judging adapters needs it."""
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    shapes = {f"{name}.weight": shape.weight_shape for name, shape in BASE.modules.items()}
    (folder / "model.safetensors").write_bytes(zeros_file(shapes))
    return folder


def with_base(home: Path, base: Path, *args: str) -> Result:
    env = {"LORAPLEX_HOME": str(home), "LORAPLEX_MODEL": str(base)}
    return CliRunner().invoke(app, list(args), env=env)


def test_adapter_is_added_listed_and_removed(
    settings: Settings, base: Path, tmp_path: Path
) -> None:
    home, folder = settings.home, write_adapter(tmp_path / "lora")
    with_base(home, base, "tenants", "create", "acme")
    named = ("adapters", "add", "--tenant", "acme", "--name", "support", str(folder))
    added = with_base(home, base, *named)
    assert added.exit_code == 0
    assert added.stdout.startswith("support  ")
    again = with_base(home, base, *named)
    assert (again.exit_code, again.stderr.count("\n")) == (1, 1)
    listed = with_base(home, base, "adapters", "list", "--tenant", "acme")
    assert listed.stdout.split()[:4] == ["support", added.stdout.split()[1], "rank", "4"]
    removed = with_base(home, base, "adapters", "remove", "--tenant", "acme", "support")
    assert removed.exit_code == 0
    assert with_base(home, base, "adapters", "list", "--tenant", "acme").stdout == ""


def test_a_name_is_pointed_tried_rolled_back_and_shown(
    settings: Settings, base: Path, tmp_path: Path
) -> None:
    home, acme = settings.home, ("--tenant", "acme")
    with_base(home, base, "tenants", "create", "acme")

    def adapters(command: str, *args: str) -> str:
        result = with_base(home, base, "adapters", command, *acme, *args)
        assert result.exit_code == 0, result.output
        return result.stdout.strip()

    for alpha in (8, 16):
        folder = write_adapter(tmp_path / str(alpha), lora_alpha=alpha)
        update = ["--update"] if alpha == 16 else []
        adapters("add", "--name", "bot", str(folder), *update)
    assert adapters("alias", "bot", "2") == "bot → @2"
    assert adapters("rollback", "bot") == "bot → @1"
    assert adapters("canary", "bot", "2", "10") == "bot → @1  canary @2 10 %"
    assert adapters("rollback", "bot") == "bot → @1"
    assert adapters("pin", "bot") == "bot → @1  pinned"
    shown = adapters("show", "bot@2").splitlines()
    assert shown[1].startswith("bot@2  ")
    assert shown[1].endswith("2 modules, 12 left alone")
    assert shown[2].split() == ["model.layers.0.self_attn.q_proj", "r=4", "×4"]
    adapters("remove", "bot@2")
    for wrong in (("alias", "bot", "2"), ("rollback", "nobody"), ("show", "bot@7")):
        result = with_base(home, base, "adapters", wrong[0], *acme, *wrong[1:])
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("name", ["base", "../x", "", "a b"])
def test_adapter_cannot_take_a_bad_name_or_the_base_models(
    settings: Settings, base: Path, tmp_path: Path, name: str
) -> None:
    home, folder = settings.home, write_adapter(tmp_path / "lora")
    with_base(home, base, "tenants", "create", "acme")
    named = ("adapters", "add", "--tenant", "acme", "--name", name, str(folder))
    result = with_base(home, base, *named)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


async def from_another_process(settings: Settings, *args: str) -> str:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loraplex_platform",
        *args,
        env={
            "PYTHONPATH": ":".join(sys.path),
            "LORAPLEX_HOME": str(settings.home),
            "LORAPLEX_MODEL": settings.model or "",
            "LORAPLEX_DATABASE_URL": settings.database_url or "",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await child.communicate()
    assert child.returncode == 0
    return output.decode().splitlines()[-1] if output else ""


async def test_commands_take_effect_in_a_running_server_within_a_second(
    served: Served, settings: Settings, base: Path, tmp_path: Path
) -> None:
    settings = replace(settings, model=str(base))
    key = await from_another_process(settings, "keys", "create", "--tenant", "acme")
    await served.client(key).models.list()
    parsed = parse_key(key)
    assert parsed is not None
    folder = write_adapter(tmp_path / "lora")
    named = ("--tenant", "acme", "--name", "fresh", str(folder))
    await from_another_process(settings, "adapters", "add", *named)
    assert (await served.client(key).models.retrieve("fresh")).id == "fresh"
    await from_another_process(settings, "keys", "revoke", parsed.id)
    await asyncio.sleep(1)
    with pytest.raises(AuthenticationError):
        await served.client(key).models.list()


async def test_a_batch_is_submitted_and_watched(
    make_app: Callable[..., FastAPI], settings: Settings, tmp_path: Path
) -> None:
    app, answers = make_app(batch_tick_s=0.1), tmp_path / "answers.jsonl"
    home, acme = settings.home, ("--tenant", "acme")
    file = tmp_path / "in.jsonl"
    file.write_bytes(jsonl(line("a"), line("b", temperature=9)))
    async with listening(app):
        done = await asyncio.to_thread(
            loraplex,
            home,
            "batches",
            "submit",
            str(file),
            *acme,
            "--watch",
            "--output",
            str(answers),
        )
    assert done.exit_code == 0, done.output
    assert "completed" in done.stdout
    assert [json.loads(text)["custom_id"] for text in answers.read_text().splitlines()] == ["a"]


def test_a_waiting_batch_is_paused_resumed_and_cancelled(
    settings: Settings, keys: Seeded, tmp_path: Path
) -> None:
    home, acme, file = settings.home, ("--tenant", "acme"), tmp_path / "in.jsonl"
    file.write_bytes(jsonl(line("a")))
    waiting = loraplex(home, "batches", "submit", str(file), *acme).stdout.strip()
    assert loraplex(home, "batches", "pause", waiting).exit_code == 0
    listed = loraplex(home, "batches", "list", *acme).stdout
    assert f"{waiting}  paused  0+0/0" in listed
    assert loraplex(home, "batches", "resume", waiting).exit_code == 0
    assert "cancelling" in loraplex(home, "batches", "cancel", waiting, *acme).stdout


async def test_a_batch_that_fails_says_why_by_line(
    make_app: Callable[..., FastAPI], settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(jsonl(line("a"), "{"))
    async with listening(make_app(batch_tick_s=0.1)):
        done = await asyncio.to_thread(
            loraplex, settings.home, "batches", "submit", str(file), "--tenant", "acme", "--watch"
        )
    assert done.exit_code == 1
    assert "line 2" in done.stderr
    assert "invalid_json_line" in done.stderr


def test_operator_gets_a_link_and_an_admin_key(settings: Settings) -> None:
    made = loraplex(settings.home, "operators", "create", "ada@example.org", "--role", "owner")
    token = made.stdout.strip().rpartition("#")[2]
    assert parse_key(token, "lpxlink") is not None
    listed = loraplex(settings.home, "operators", "list").stdout.split()
    assert (listed[0], *listed[2:]) == ("ada@example.org", "owner", "invited")
    key = loraplex(settings.home, "operators", "key", "ci").stdout.strip()
    assert parse_key(key, "lpxadmin") is not None


def test_unknown_role_is_refused_in_one_line(settings: Settings) -> None:
    done = loraplex(settings.home, "operators", "create", "a@b", "--role", "root")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: role must be one of owner")


def test_tenant_on_a_plan_has_its_weight_until_it_has_its_own(settings: Settings) -> None:
    home = settings.home
    loraplex(home, "tenants", "create", "acme")
    made = loraplex(
        home, "plans", "create", "gold", "--weight", "4", "--limit", "requests_per_minute=9"
    )
    assert made.exit_code == 0
    assert "gold  4  interactive  requests_per_minute=9" in loraplex(home, "plans", "list").stdout
    assert loraplex(home, "plans", "assign", "gold", "--tenant", "acme").exit_code == 0
    assert loraplex(home, "tenants", "list").stdout.split()[-2:] == ["4", "interactive"]
    assert loraplex(home, "plans", "remove", "gold").exit_code == 1
    loraplex(home, "tenants", "set", "acme", "--weight", "2")
    assert loraplex(home, "tenants", "list").stdout.split()[-2:] == ["2", "interactive"]
