"""The audit log: nobody changes a row beside it, nobody changes the log itself."""

import json

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from tests.platform_stand import engine_of

from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.audit.repository import AuditFilter
from loraplex_platform.audit.service import AuditService
from loraplex_platform.db.database import Database
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE, Actor, Administrator
from loraplex_platform.models import Tenant
from loraplex_platform.tenants.service import TenantService


@pytest.fixture(params=["sqlite", "postgres"])
async def either(request: pytest.FixtureRequest, database: Database) -> Database:
    """A migrated database of each kind."""
    if request.param == "sqlite":
        return database
    return Database(request.getfixturevalue("migrated_postgres_url"))


async def test_log_is_append_only(either: Database) -> None:
    await TenantService(either, SystemClock()).create("acme")
    await either.close()
    engine = engine_of(either.url)
    for statement in ("UPDATE audit_event SET actor_id = 'x'", "DELETE FROM audit_event"):
        with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text(statement))
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM audit_event")) == 2
    engine.dispose()


async def test_audited_row_changes_in_no_other_way(database: Database) -> None:
    async def smuggle() -> None:
        async with database.unit_of_work() as session:
            session.add(Tenant(id="ten_1", name="a", state="active", created_at=now))

    now = SystemClock().now()
    with pytest.raises(AssertionError, match=r"audit\.trail"):
        await smuggle()


async def test_failed_change_leaves_no_trace(database: Database) -> None:
    tenants = TenantService(database, SystemClock())
    await tenants.create("acme")
    with pytest.raises(Exception, match="already"):
        await tenants.create("acme")
    async with database.reading() as session:
        assert len((await session.scalars(across_tenants(AuditEvent))).all()) == 2


async def test_event_names_actor_request_and_address(database: Database) -> None:
    by = Administrator(Actor("admin_key", "k1", "ci"), "owner").at("req_1", "10.0.0.1")
    tenant = await TenantService(database, SystemClock()).create("acme", by=by)
    [event] = await AuditService(database).page(by, AuditFilter(object_id=tenant.id))
    assert (event.actor_kind, event.actor_id, event.actor_name) == ("admin_key", "k1", "ci")
    assert (event.request_id, event.address) == ("req_1", "10.0.0.1")
    assert (event.action, event.before) == ("tenant.created", None)
    assert event.after is not None
    assert event.after["name"] == "acme"


async def test_tenants_people_see_their_own_events_only(database: Database) -> None:
    tenants = TenantService(database, SystemClock())
    acme, _ = await tenants.create("acme"), await tenants.create("globex")
    admin = Administrator(Actor("person", "p"), "tenant_admin", acme.id)
    events = await AuditService(database).page(admin, AuditFilter())
    assert {event.tenant_id for event in events} == {acme.id}


async def test_export_walks_all_pages(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loraplex_platform.audit.service.EXPORT_PAGE", 3)
    tenants = TenantService(database, SystemClock())
    for i in range(5):
        await tenants.create(f"t{i}")
    lines = [line async for line in AuditService(database).export(COMMAND_LINE, AuditFilter())]
    assert len({json.loads(line)["id"] for line in lines}) == len(lines) == 10
