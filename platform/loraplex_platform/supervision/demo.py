"""The demo tenants of a first start: each with a key, and an adapter that shows."""

import json
import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loraplex_adapters.store import AdapterStore
from loraplex_platform.auth.service import KeyService
from loraplex_platform.catalogue.service import CatalogueService
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.errors import NotFound
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.supervision.base_model import is_demo, served_name
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.service import TenantService


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """One line of demo.json in the demo's folder."""

    tenant: str
    adapter: str
    folder: Path
    says: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Access:
    """What a tenant's client needs."""

    api_key: str
    model: str


def demo_folder() -> Path:
    """`_demo` in an installed wheel, `deploy/demo/` in a checkout."""
    packaged = Path(__file__).parents[1] / "_demo"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "deploy" / "demo"


def demo_tenants() -> list[DemoTenant]:
    folder = demo_folder()
    listed = json.loads((folder / "demo.json").read_text())["tenants"]
    return [DemoTenant(**{**entry, "folder": folder / entry["folder"]}) for entry in listed]


def access_file(settings: Settings) -> Path:
    return settings.home / "demo.json"


class Seeder:
    """Makes what is missing, so that a start that was cut short is finished by the next."""

    def __init__(self, settings: Settings, database: Database, model: Path) -> None:
        self._settings = settings
        self._model = model
        clock = SystemClock()
        self._tenants = TenantService(database, clock)
        self._keys = KeyService(database, Secrets.load_or_create(settings.home), clock)
        store = AdapterStore(settings.adapter_store)
        base_id = served_name(settings)
        self._catalogue = CatalogueService(database, store, clock, base_id=base_id)

    async def seed(self) -> dict[str, Access]:
        return {demo.tenant: await self._seed_tenant(demo) for demo in demo_tenants()}

    async def _seed_tenant(self, demo: DemoTenant) -> Access:
        tenant = await self._tenant(demo.tenant)
        project = await self._tenants.default_project(tenant)
        key = await self._keys.create(tenant.id, project.id, name="demo")
        if not is_demo(self._settings):  # the demo's adapters fit no other model
            return Access(str(key), served_name(self._settings))
        names = {adapter.name for adapter in await self._catalogue.of_tenant(tenant.id)}
        if demo.adapter not in names:
            await self._catalogue.add(
                tenant.id,
                demo.adapter,
                demo.folder,
                base_folder=self._model,
                max_rank=self._settings.max_lora_rank,
            )
        return Access(str(key), demo.adapter)

    async def _tenant(self, name: str) -> Tenant:
        try:
            return await self._tenants.get(name)
        except NotFound:
            return await self._tenants.create(name)


async def seed(settings: Settings, model: Path, base_url: str) -> dict[str, Access]:
    """Seed the demo tenants and leave what their clients need in `$LORAPLEX_HOME/demo.json`."""
    database = Database(settings.database)
    try:
        access = await Seeder(settings, database, model).seed()
    finally:
        await database.close()
    tenants = {name: asdict(entry) for name, entry in access.items()}
    content = {"base_url": base_url, "base_model": served_name(settings), "tenants": tenants}
    _write_private(access_file(settings), content)
    return access


def follow_address(settings: Settings, base_url: str) -> None:
    """Keep the file true when a later start serves on another address."""
    content = json.loads(access_file(settings).read_text())
    if content["base_url"] != base_url:
        _write_private(access_file(settings), content | {"base_url": base_url})


def curl(base_url: str, access: Access, prompt: str) -> str:
    """A command that asks and streams the answer; it can be pasted into a shell."""
    body = {
        "model": access.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 64,
        "temperature": 0,
        "stream": True,
    }
    return (
        f"curl -N {base_url}/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {access.api_key}' -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps(body))}"
    )


def _write_private(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, and never readable by others."""
    draft = path.with_suffix(".tmp")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        json.dump(content, file, indent=2)
    draft.rename(path)
