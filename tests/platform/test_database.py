"""The database's rules: migrations describe the models, tenant data is read through its scope."""

import ast
import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from openai import AsyncOpenAI
from sqlalchemy import inspect, text
from tests.every_table import add_rows, content_by_column
from tests.platform_stand import engine_of, letter_engine, listening, seed

import loraplex_platform
from loraplex_platform.admission.plans import PlanService
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.app import create_app
from loraplex_platform.audit.trail import changing
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import alembic_config, downgrade, upgrade
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.models import Base, Tenant, UsageEvent
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.service import PeopleService
from loraplex_platform.tenants.service import TenantService

ROWS_OF_0005 = (
    "INSERT INTO tenant (id, name, weight, max_tier, created_at)"
    " VALUES ('t', 'acme', 1, 'interactive', :now)",
    "INSERT INTO project (id, tenant_id, name, created_at) VALUES ('p', 't', 'default', :now)",
    "INSERT INTO api_key (id, tenant_id, project_id, name, digest, pepper_id, last_four, scopes,"
    " created_at) VALUES ('k', 't', 'p', '', 'd', 'x', '1234', '[]', :now)",
)
SIGNED_IN = ("tenant_id", "id", "person_id", "digest", "address", "created_at", "expires_at")
# What migrations mean to change of what is there; all else is kept, whatever the table.
CHANGED = {
    "up": {
        "tenant.prefix_tokens",  # the default becomes: what the plan says
        *(f"login_session.{name}" for name in SIGNED_IN),  # everybody signs in again
    },
    "down": {
        "tenant.weight",  # these three had to have a value
        "tenant.max_tier",
        "tenant.prefix_tokens",
        "adapter.removed_at",  # a name had one version
    },
}
PACKAGE = Path(loraplex_platform.__file__).parent


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "postgres":
        given: str = request.getfixturevalue("postgres_url")
        return given
    return f"sqlite:///{tmp_path / 'empty.sqlite3'}"


def test_migrations_make_what_the_models_say_and_undo_it(url: str) -> None:
    upgrade(url)
    engine = engine_of(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    downgrade(url)
    assert inspect(engine).get_table_names() == ["alembic_version"]


def test_migrations_keep_what_is_in_the_tables_up_and_down(url: str) -> None:
    upgrade(url, "0005_batches")
    engine = engine_of(url)
    with engine.begin() as connection:
        for statement in ROWS_OF_0005:
            connection.execute(text(statement), {"now": SystemClock().now().isoformat(" ")})
    upgrade(url)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT state, revision FROM tenant")).all() == [
            ("active", 1)
        ]
        connection.execute(text("UPDATE tenant SET weight = NULL, max_tier = NULL"))
    downgrade(url, "0005_batches")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT weight, max_tier FROM tenant")).all() == [
            (1.0, "interactive")
        ]
        assert connection.execute(text("SELECT id, digest FROM api_key")).all() == [("k", "d")]
    upgrade(url)
    downgrade(url)


async def test_migrations_undo_themselves_with_data_in_the_tables(
    url: str, settings: Settings
) -> None:
    upgrade(url)
    there = replace(settings, database_url=url)
    await seed(there)
    database, clock = Database(url), SystemClock()
    people = PeopleService(database, Secrets.load_or_create(settings.home), Passwords(), clock)
    await people.invite("a@b", "owner")
    plan = await PlanService(database, clock).create("gold", {})
    tenant = await TenantService(database, clock).create("initech", {"plan_id": plan.id})
    whole = Subject(tenant.id, "tenant", tenant.id)
    await LimitService(database, clock).override(whole, "requests_per_minute", 1, expires_at=None)
    await database.close()
    await asyncio.to_thread(leave_no_table_empty, url)
    await asyncio.to_thread(downgrade, url)
    await asyncio.to_thread(upgrade, url)


def leave_no_table_empty(url: str) -> None:
    content = content_of(url, more_rows_from=0)
    assert {column.split(".")[0] for column in content} == Base.metadata.tables.keys()
    assert [column for column, found in content.items() if len(found) < 2] == []


@pytest.mark.slow
def test_each_migration_keeps_what_is_in_every_table(url: str) -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    revisions = [script.revision for script in scripts.walk_revisions()][::-1]
    changed = {"up": set[str](), "down": set[str]()}
    upgrade(url, revisions[0])
    for n, revision in enumerate(revisions[1:]):
        before = content_of(url, more_rows_from=2 * n)
        upgrade(url, revision)
        changed["up"] |= differing(before, content_of(url))
    before = content_of(url, more_rows_from=2 * len(revisions))
    for revision in revisions[-2::-1]:
        downgrade(url, revision)
        after = content_of(url)
        changed["down"] |= differing(before, after)
        before = after
    assert changed == CHANGED
    upgrade(url)


def content_of(url: str, more_rows_from: int | None = None) -> Mapping[str, list[str]]:
    with engine_of(url).begin() as connection:
        if more_rows_from is not None:
            add_rows(connection, more_rows_from)
        return content_by_column(connection)


def differing(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> set[str]:
    """Columns that are in both and do not hold the same."""
    return {name for name in before.keys() & after.keys() if before[name] != after[name]}


def test_several_processes_may_migrate_at_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upgrade, [url] * 4))


async def test_api_serves_and_meters_on_postgres(
    migrated_postgres_url: str, settings: Settings, model: ServedModel
) -> None:
    there = replace(settings, database_url=migrated_postgres_url)
    keys = await seed(there)
    async with (
        listening(create_app(there, letter_engine(), model)) as base_url,
        AsyncOpenAI(base_url=f"{base_url}/v1", api_key=keys.acme, timeout=60) as client,
    ):
        answer = await client.chat.completions.create(
            model="support", messages=[{"role": "user", "content": "hi"}], max_tokens=3
        )
    database = Database(migrated_postgres_url)
    async with database.reading() as session:
        events = (await session.scalars(across_tenants(UsageEvent))).all()
    await database.close()
    assert [e.completion_tokens for e in events] == [answer.usage.completion_tokens] == [3]


async def test_unit_of_work_rolls_back_when_its_body_fails(database: Database) -> None:
    tenant = Tenant(id="ten_1", name="a", state="active", created_at=SystemClock().now())

    async def fail_after_writing() -> None:
        async with changing(database, COMMAND_LINE.actor, SystemClock()) as session:
            session.add(tenant)
            await session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_after_writing()
    assert await TenantService(database, SystemClock()).list() == []


async def test_writers_that_read_first_wait_for_each_other(database: Database) -> None:
    service = TenantService(database, SystemClock())
    await asyncio.gather(*(service.create(f"t{i}") for i in range(20)))
    assert len(await service.list()) == 20


async def test_reader_does_not_wait_for_a_writer(database: Database) -> None:
    async with database.unit_of_work(), asyncio.timeout(60), database.reading() as session:
        await session.get(Tenant, "nobody")


def test_repositories_start_every_statement_from_the_tenant_scope() -> None:
    """`select`, `update`, `delete` and `.get` belong to db/ alone."""
    offences = []
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "db":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
                names = {alias.name for alias in node.names}
                offences += [f"{path.name}: {n}" for n in names & {"select", "update", "delete"}]
            if isinstance(node, ast.Attribute) and node.attr in {"commit", "rollback"}:
                offences.append(f"{path.name}:{node.lineno}: {node.attr}")
    assert offences == []


def test_tables_without_a_tenant_are_the_platforms_own() -> None:
    tables = [t for t in Base.metadata.tables.values() if t.name != "tenant"]
    assert {t.name for t in tables if "tenant_id" not in t.columns} == {
        "idempotent_request",
        "plan",
    }
