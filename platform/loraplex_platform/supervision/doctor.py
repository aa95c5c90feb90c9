"""`loraplex doctor`: is everything here that serving needs, and if not, what to do about it."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from loraplex_platform.config import Settings, inherited_environment
from loraplex_platform.db.database import Database, is_bound_by_policies
from loraplex_platform.db.migrations import current_revision, head_revision
from loraplex_platform.kit.secrets import BadSecretFile, Secrets
from loraplex_platform.supervision.base_model import expected_folder
from loraplex_platform.supervision.processes import available_cpus

FREE_DISK_BYTES = 2 << 30  # the demo model's download and conversion, and some air


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; with a cure when it is not well."""

    subject: str
    observation: str
    cure: str | None = None

    @property
    def is_well(self) -> bool:
        return self.cure is None

    def __str__(self) -> str:
        line = f"{'ok  ' if self.is_well else 'FAIL'} {self.subject}: {self.observation}"
        return line if self.cure is None else f"{line}\n     {self.cure}"


async def examine(settings: Settings) -> list[Finding]:
    """Look at everything; changes nothing."""
    return [
        _python(),
        *await _engine_side(),
        _home(settings.home),
        _secret(settings.home),
        await examine_database(settings),
        _model(settings),
        _disk(settings.cache),
    ]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    cure = None if sys.version_info >= (3, 11) else "use Python 3.11 or newer"
    return Finding("python", f"{version}, {available_cpus()} CPUs", cure)


async def _engine_side() -> list[Finding]:
    """The torch part, in a process of its own."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loraplex_engine.checkup",
        env=inherited_environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, errors = await child.communicate()
    if child.returncode != 0:
        last = (errors.decode().strip().splitlines() or ["no output"])[-1]
        return [
            Finding("engine", last, "install the engine's packages: pip install 'loraplex[engine]'")
        ]
    report: Mapping[str, str | None] = json.loads(output)
    packages = {name: version for name, version in report.items() if name != "device"}
    found = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    missing = [name for name, version in packages.items() if not version]
    cure = f"pip install {' '.join(missing)}" if missing else None
    return [Finding("packages", found, cure), Finding("device", str(report["device"]))]


def _home(home: Path) -> Finding:
    if not home.exists():
        return Finding("home", f"{home} does not exist yet; `loraplex serve` makes it")
    if os.access(home, os.W_OK | os.X_OK):
        return Finding("home", str(home.absolute()))
    return Finding("home", f"{home} is not writable", "change its owner, or set LORAPLEX_HOME")


def _secret(home: Path) -> Finding:
    path = home / "secret.key"
    if not path.exists():
        return Finding("secret", f"{path} does not exist yet; the first start makes it")
    try:
        secrets = Secrets.load_or_create(home)
    except BadSecretFile as error:
        return Finding("secret", str(error), "restore it from a backup: no key works without it")
    return Finding("secret", f"{path}, key {secrets.key_id}")


async def examine_database(settings: Settings) -> Finding:
    if settings.database_url is None and not (settings.home / "loraplex.sqlite3").exists():
        return Finding("database", "does not exist yet; the first start makes it")
    database = Database(settings.database)
    try:
        async with database.reading() as session:
            revision = await current_revision(session)
            is_bound = await is_bound_by_policies(session)
    except SQLAlchemyError as error:
        return Finding("database", str(error), "check LORAPLEX_DATABASE_URL and that it is running")
    finally:
        await database.close()
    if not is_bound:
        cure = "connect as a role without SUPERUSER and BYPASSRLS, which owns the database"
        return Finding("database", "this role is not bound by row-level security", cure)
    if revision == head_revision():
        return Finding("database", f"reachable, at revision {revision}")
    cure = "any `loraplex` command that opens it migrates it, for example `loraplex tenants list`"
    return Finding("database", f"at revision {revision}, expected {head_revision()}", cure)


def _model(settings: Settings) -> Finding:
    folder = expected_folder(settings)
    if not folder.exists():
        return Finding("model", f"{folder} is not prepared yet; `loraplex serve` does it")
    wanted = ("config.json", "tokenizer.json")
    missing = [name for name in wanted if not (folder / name).is_file()]
    missing += [] if any(folder.glob("*.safetensors")) else ["*.safetensors"]
    if missing:
        cure = f"remove {folder} and run `loraplex models import`"
        return Finding("model", f"{folder} lacks {', '.join(missing)}", cure)
    return Finding("model", str(folder))


def _disk(cache: Path) -> Finding:
    existing = next(parent for parent in (cache, *cache.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    cure = (
        None
        if free >= FREE_DISK_BYTES
        else f"free {FREE_DISK_BYTES >> 30} GiB, or set LORAPLEX_CACHE"
    )
    return Finding("disk", f"{free / 2**30:.1f} GiB free for the cache at {cache}", cure)
