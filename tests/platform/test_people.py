"""People: invited and logged in by one-time links and passwords, kept within their role."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from loraplex_platform.audit.repository import AuditFilter
from loraplex_platform.audit.service import AuditService
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import (
    Conflict,
    InvalidLogin,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    RateLimited,
)
from loraplex_platform.kit.principal import COMMAND_LINE, Actor, Administrator
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.people.models import Person
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.schemas import administrator_of
from loraplex_platform.people.service import PeopleService
from loraplex_platform.people.sessions import IDLE_LIVES, SESSION_LIVES, SessionService
from loraplex_platform.tenants.service import TenantService

PASSWORD = "correct horse battery"
EMAIL = "ada@example.org"


@dataclass
class Stand:
    people: PeopleService
    sessions: SessionService
    tenants: TenantService
    audit: AuditService
    clock: ManualClock

    async def member(self, role: str = "owner", email: str = EMAIL, **place: str) -> Person:
        """Somebody who has followed their invitation."""
        invited = await self.people.invite(email, role, **place)  # type: ignore[arg-type]
        return await self.people.redeem(invited.token, PASSWORD)


@pytest.fixture
async def stand(database: Database, tmp_path: Path) -> Stand:
    clock, secrets, passwords = ManualClock(), Secrets.load_or_create(tmp_path), Passwords()
    return Stand(
        PeopleService(database, secrets, passwords, clock),
        SessionService(database, secrets, passwords, clock),
        TenantService(database, clock),
        AuditService(database),
        clock,
    )


async def test_invited_person_sets_a_password_and_logs_in(stand: Stand) -> None:
    person = await stand.member()
    visitor = await stand.sessions.visitor(await stand.sessions.open(" ADA@example.org", PASSWORD))
    assert visitor is not None
    assert visitor.administrator == Administrator(Actor("person", person.id, EMAIL), "owner")


async def test_link_works_once(stand: Stand) -> None:
    invited = await stand.people.invite(EMAIL, "owner")
    await stand.people.redeem(invited.token, PASSWORD)
    with pytest.raises(NotFound):
        await stand.people.redeem(invited.token, "another password")


async def test_link_ends(stand: Stand) -> None:
    invited = await stand.people.invite(EMAIL, "owner")
    stand.clock.advance(timedelta(days=7).total_seconds())
    with pytest.raises(NotFound):
        await stand.people.redeem(invited.token, PASSWORD)


async def test_short_password_leaves_the_link_good(stand: Stand) -> None:
    invited = await stand.people.invite(EMAIL, "owner")
    with pytest.raises(InvalidRequest):
        await stand.people.redeem(invited.token, "short")
    assert (await stand.people.redeem(invited.token, PASSWORD)).state == "active"


async def test_reset_ends_sessions_and_changes_the_password(stand: Stand) -> None:
    person = await stand.member()
    token = await stand.sessions.open(EMAIL, PASSWORD)
    link = (await stand.people.reset(COMMAND_LINE, None, person.id)).token
    await stand.people.redeem(link, "a new long password")
    assert await stand.sessions.visitor(token) is None
    with pytest.raises(InvalidLogin):
        await stand.sessions.open(EMAIL, PASSWORD)


async def test_session_ends_by_itself_and_is_swept(stand: Stand) -> None:
    await stand.member()
    token = await stand.sessions.open(EMAIL, PASSWORD)
    stand.clock.advance(SESSION_LIVES.total_seconds())
    assert await stand.sessions.visitor(token) is None
    assert await stand.sessions.sweep() == 1


async def test_session_that_nobody_uses_ends_long_before(stand: Stand) -> None:
    await stand.member()
    token = await stand.sessions.open(EMAIL, PASSWORD)
    half = IDLE_LIVES.total_seconds() / 2 + 1
    for is_at_work, still_there in ((True, True), (True, True), (False, True), (True, False)):
        stand.clock.advance(half)  # only work counts: a page that refreshes itself does not
        visitor = await stand.sessions.visitor(token, is_at_work=is_at_work)
        assert (visitor is not None) == still_there
    assert await stand.sessions.sweep() == 1


async def test_session_in_use_ends_after_its_longest_time(stand: Stand) -> None:
    await stand.member()
    token = await stand.sessions.open(EMAIL, PASSWORD)
    step = timedelta(minutes=29)
    for _ in range(SESSION_LIVES // step):
        stand.clock.advance(step.total_seconds())
        assert await stand.sessions.visitor(token) is not None
    stand.clock.advance(step.total_seconds())
    assert await stand.sessions.visitor(token) is None


async def test_another_role_begins_with_another_session(stand: Stand) -> None:
    person = await stand.member("viewer")
    token = await stand.sessions.open(EMAIL, PASSWORD)
    await stand.people.change(COMMAND_LINE, None, person.id, {"name": "Ada"})
    assert await stand.sessions.visitor(token) is not None
    await stand.people.change(COMMAND_LINE, None, person.id, {"role": "operator"})
    assert await stand.sessions.visitor(token) is None


async def test_logged_out_token_is_worth_nothing(stand: Stand) -> None:
    await stand.member()
    token = await stand.sessions.open(EMAIL, PASSWORD)
    await stand.sessions.close(token)
    assert await stand.sessions.visitor(token) is None


async def test_disabled_person_is_logged_out_and_stays_out(stand: Stand) -> None:
    person = await stand.member("viewer")
    token = await stand.sessions.open(EMAIL, PASSWORD)
    await stand.people.change(COMMAND_LINE, None, person.id, {"state": "disabled"})
    assert await stand.sessions.visitor(token) is None
    with pytest.raises(InvalidLogin):
        await stand.sessions.open(EMAIL, PASSWORD)


async def test_wrong_passwords_are_slowed_down_for_the_person_from_anywhere(stand: Stand) -> None:
    await stand.member()
    for i in range(10):
        with pytest.raises(InvalidLogin):
            await stand.sessions.open(EMAIL, "mallory guesses it", f"10.0.0.{i}")
    with pytest.raises(RateLimited):
        await stand.sessions.open(EMAIL, PASSWORD, "10.0.0.99")
    stand.clock.advance(10)
    assert await stand.sessions.open(EMAIL, PASSWORD, "10.0.0.99")


async def test_last_owner_cannot_go(stand: Stand) -> None:
    owner = await stand.member()
    with pytest.raises(Conflict):
        await stand.people.remove(COMMAND_LINE, None, owner.id)
    with pytest.raises(Conflict):
        await stand.people.change(COMMAND_LINE, None, owner.id, {"role": "viewer"})
    await stand.member(email="grace@example.org")
    await stand.people.remove(COMMAND_LINE, None, owner.id)


async def test_email_address_is_one_persons(stand: Stand) -> None:
    await stand.people.invite(EMAIL, "owner")
    with pytest.raises(Conflict):
        await stand.people.invite("Ada@Example.org", "viewer")


async def test_tenant_admin_invites_only_into_the_own_tenant(stand: Stand) -> None:
    acme, globex = await stand.tenants.create("acme"), await stand.tenants.create("globex")
    admin = administrator_of(await stand.member("tenant_admin", tenant_id=acme.id))
    await stand.people.invite("b@example.org", "tenant_viewer", tenant_id=acme.id, by=admin)
    for role, tenant_id in (("tenant_viewer", globex.id), ("viewer", None)):
        with pytest.raises(PermissionDenied):
            await stand.people.invite("c@example.org", role, tenant_id=tenant_id, by=admin)


async def test_operator_does_not_make_owners(stand: Stand) -> None:
    operator = administrator_of(await stand.member("operator"))
    with pytest.raises(PermissionDenied):
        await stand.people.invite("b@example.org", "owner", by=operator)


async def test_staff_is_invisible_to_a_tenants_people(stand: Stand) -> None:
    acme = await stand.tenants.create("acme")
    owner = await stand.member()
    admin = administrator_of(
        await stand.member("tenant_admin", "admin@example.org", tenant_id=acme.id)
    )
    assert await stand.people.page(admin, None) == []
    with pytest.raises(NotFound):
        await stand.people.find(admin, None, owner.id)


async def test_audit_log_tells_who_changed_what_without_secrets(stand: Stand) -> None:
    person = await stand.member("viewer")
    await stand.people.change(COMMAND_LINE, None, person.id, {"role": "operator"})
    events = await stand.audit.page(COMMAND_LINE, AuditFilter(object_id=person.id))
    told = [(e.action, e.actor_kind, e.before, e.after) for e in events]
    assert ("person.updated", "command", {"role": "viewer"}, {"role": "operator"}) in told
    assert ("person.updated", "person", {"state": "invited"}, {"state": "active"}) in told
    assert "password_hash" not in str(told)


def test_form_token_belongs_to_one_session(stand: Stand) -> None:
    token = stand.sessions.form_token("ses_1")
    assert stand.sessions.is_form_token("ses_1", token)
    assert not stand.sessions.is_form_token("ses_2", token)
    assert not stand.sessions.is_form_token("ses_1", "ä")
