"""The second wall on Postgres: a session that names a tenant sees and writes that tenant's rows only."""

import ast
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from tests.platform_stand import seed
from tests.services import PostgresServer

import loraplex_platform
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import Actor, Administrator, Principal
from loraplex_platform.models import Base
from loraplex_platform.supervision.doctor import Finding, examine_database
from loraplex_platform.tenants.service import TenantService

PACKAGE = Path(loraplex_platform.__file__).parent
OWNED = sorted(t.name for t in Base.metadata.tables.values() if "tenant_id" in t.c)


@pytest.fixture
async def database(migrated_postgres_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    """On Postgres, with the two tenants."""
    await seed(Settings(home=tmp_path, database_url=migrated_postgres_url))
    database = Database(migrated_postgres_url)
    yield database
    await database.close()


@pytest.fixture
async def tenants(database: Database) -> dict[str, str]:
    """Ids by name."""
    return {t.name: t.id for t in await TenantService(database, SystemClock()).list()}


def acting_for(tenant_id: str) -> Principal:
    return Principal(tenant_id, "", "")


def test_every_table_of_tenants_is_under_the_policy_and_the_owner_too(
    database: Database, postgres: PostgresServer
) -> None:
    with psycopg.connect(database.url) as connection:
        rows = connection.execute(
            "SELECT relname FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid"
            " WHERE relrowsecurity AND relforcerowsecurity AND polname = 'own_rows' ORDER BY relname"
        ).fetchall()
        [(may_bypass,)] = connection.execute(
            "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
        ).fetchall()
    assert [name for (name,) in rows] == sorted([*OWNED, "tenant"])
    assert not may_bypass, "these tests would show nothing"


@pytest.mark.parametrize("kind", ["key", "administrator"])
async def test_a_tenants_session_sees_nothing_of_another(
    database: Database, tenants: dict[str, str], kind: str
) -> None:
    acme = tenants["acme"]
    people = Administrator(Actor("person", "p"), "tenant_admin", acme)
    async with database.reading(acting_for(acme) if kind == "key" else people) as session:
        for table in OWNED:
            seen = await session.scalars(text(f"SELECT DISTINCT tenant_id FROM {table}"))
            assert set(seen) <= ({acme, None} if table == "price_book" else {acme})
        assert list(await session.scalars(text("SELECT id FROM tenant"))) == [acme]
        assert list(await session.scalars(text("SELECT tenant_id FROM api_key"))) == [acme]


async def test_a_tenants_session_writes_nothing_of_another(
    database: Database, tenants: dict[str, str]
) -> None:
    insert = text(
        "INSERT INTO project (id, tenant_id, name, created_at, revision)"
        " VALUES (:id, :tenant_id, :id, now(), 1)"
    )
    acme, globex = tenants["acme"], tenants["globex"]
    async with database.unit_of_work(acting_for(acme)) as session:
        await session.execute(insert, {"id": "own", "tenant_id": acme})
        for change in ("UPDATE project SET name = 'x' WHERE tenant_id = :id RETURNING id",
                       "DELETE FROM api_key WHERE tenant_id = :id RETURNING id"):  # fmt: skip
            assert (await session.execute(text(change), {"id": globex})).all() == []
    for smuggle in (insert, text("UPDATE project SET tenant_id = :tenant_id WHERE id = 'own'")):
        with pytest.raises(DBAPIError, match="row-level security"):
            async with database.unit_of_work(acting_for(acme)) as session:
                await session.execute(smuggle, {"id": "theirs", "tenant_id": globex})


async def test_every_tenant_reads_the_price_list_and_nobody_changes_it(
    database: Database, tenants: dict[str, str]
) -> None:
    async with database.unit_of_work(acting_for(tenants["acme"])) as session:
        listed = text("SELECT id FROM price_book WHERE tenant_id IS NULL")
        assert list(await session.scalars(listed)) == ["book_first"]
        for change in (
            "UPDATE price_book SET id = 'mine' RETURNING id",
            "DELETE FROM price_book RETURNING id",
        ):
            assert (await session.execute(text(change))).all() == []


async def test_a_pooled_connection_forgets_whose_rows_it_saw(
    migrated_postgres_url: str, database: Database, tenants: dict[str, str]
) -> None:
    one = Database(migrated_postgres_url, pool_size=1)
    for name in ("acme", "globex", "acme"):
        async with one.reading(acting_for(tenants[name])) as session:
            assert list(await session.scalars(text("SELECT name FROM tenant"))) == [name]
    async with one.reading() as session:
        assert len(list(await session.scalars(text("SELECT name FROM tenant")))) == 2
    await one.close()


def test_whoever_names_nobody_sees_nothing(database: Database, tenants: dict[str, str]) -> None:
    with psycopg.connect(database.url) as connection:
        assert connection.execute("SELECT count(*) FROM tenant").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                "INSERT INTO project (id, tenant_id, name, created_at, revision)"
                " VALUES ('x', %s, 'x', now(), 1)",
                [tenants["acme"]],
            )


async def test_doctor_warns_of_a_role_that_no_policy_binds(
    postgres: PostgresServer, database: Database, tmp_path: Path
) -> None:
    def finding_of(url: str) -> Awaitable[Finding]:
        return examine_database(Settings(home=tmp_path, database_url=url))

    name = database.url.rpartition("/")[2]
    assert (await finding_of(database.url)).is_well
    strange = await finding_of(postgres.url(name, user="postgres"))
    assert "not bound by row-level security" in strange.observation


def test_whoever_is_asked_for_names_them_to_the_database() -> None:
    """A function that is given a principal opens no session without it."""
    offences = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        for call, names in _calls(ast.parse(path.read_text()), frozenset())
        if names and not names & {_name(a) for a in (*call.args, *(k.value for k in call.keywords))}
    ]
    assert offences == []


def _calls(node: ast.AST, names: frozenset[str]) -> Iterator[tuple[ast.Call, frozenset[str]]]:
    """Calls that open a session, with the names under which the function knows who asks."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = [*node.args.args, *node.args.kwonlyargs]
        askers = {a.arg for a in given if _name(a.annotation) in ("Principal", "Administrator")}
        names = names | askers
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else _name(node.func)
        if called in ("unit_of_work", "reading", "changing"):
            yield node, names
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, names)


def _name(node: ast.AST | None) -> str | None:
    return node.id if isinstance(node, ast.Name) else None
