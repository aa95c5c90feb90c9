"""What a key may be used for, from where, until when, and how soon a change is felt."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from tests.services import running_postgres

from loraplex_platform.auth.authenticator import CACHE_S, OUTAGE_S, Authenticator
from loraplex_platform.auth.keys import PlainKey, new_key
from loraplex_platform.auth.networks import client_address, networks_of
from loraplex_platform.auth.schemas import KeyPath
from loraplex_platform.auth.service import KeyService
from loraplex_platform.auth.uses import EVERY_S
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import (
    Conflict,
    InvalidApiKey,
    NotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
)
from loraplex_platform.kit.principal import COMMAND_LINE, Actor, Administrator
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.models import Project, Tenant
from loraplex_platform.tenants.projects import ProjectService
from loraplex_platform.tenants.service import TenantService


@dataclass
class Stand:
    """A tenant with a project `web`, and a process that knows nothing of the changes made."""

    keys: KeyService
    tenants: TenantService
    projects: ProjectService
    authenticator: Authenticator
    clock: ManualClock
    tenant: Tenant
    project: Project

    async def key(self, **values: object) -> PlainKey:
        return await self.keys.create(self.tenant.id, self.project.id, values=values)

    def path(self, key: PlainKey) -> KeyPath:
        return KeyPath(self.tenant.id, self.project.id, key.id)

    async def change_tenant(self, **values: object) -> None:
        await self.tenants.change(COMMAND_LINE, self.tenant.id, values)

    async def refused(self, key: PlainKey, address: str | None = None) -> str | None:
        """The code of a refusal once every cache has forgotten."""
        self.clock.advance(CACHE_S)
        try:
            await self.authenticator.authenticate(str(key), address)
        except (InvalidApiKey, PermissionDenied) as error:
            return error.code
        return None


async def stand_on(database: Database, home: Path, other: Database | None = None) -> Stand:
    """`other` is the database of the process that authenticates."""
    clock, secrets = ManualClock(), Secrets.load_or_create(home)
    tenants, projects = TenantService(database, clock), ProjectService(database, clock)
    tenant = await tenants.create("acme")
    project = await projects.create(COMMAND_LINE, tenant.id, "web", {})
    return Stand(
        KeyService(database, secrets, clock),
        tenants,
        projects,
        Authenticator(other or database, secrets, clock),
        clock,
        tenant,
        project,
    )


@pytest.fixture
async def stand(database: Database, tmp_path: Path) -> AsyncIterator[Stand]:
    other = Database(database.url)
    yield await stand_on(database, tmp_path, other)
    await other.close()


async def test_rotated_key_keeps_its_id_and_both_secrets_until_the_grace_ends(
    stand: Stand,
) -> None:
    old = await stand.key()
    new = await stand.keys.rotate(COMMAND_LINE, stand.path(old), timedelta(minutes=5))
    assert new.id == old.id
    assert [await stand.refused(k) for k in (old, new)] == [None, None]
    stand.clock.advance(300)
    assert [await stand.refused(k) for k in (old, new)] == ["invalid_api_key", None]


async def test_rotation_without_grace_ends_the_old_secret_within_the_bound(stand: Stand) -> None:
    old = await stand.key()
    await stand.authenticator.authenticate(str(old))
    await stand.keys.rotate(COMMAND_LINE, stand.path(old), timedelta(0))
    assert await stand.refused(old) == "invalid_api_key"


async def test_revoked_key_is_not_rotated(stand: Stand) -> None:
    key = await stand.key()
    await stand.keys.revoke(key.id)
    with pytest.raises(Conflict):
        await stand.keys.rotate(COMMAND_LINE, stand.path(key), timedelta(0))


async def test_expired_key_is_refused_though_it_is_cached(stand: Stand) -> None:
    ends = stand.clock.now() + timedelta(seconds=0.5)
    key = await stand.keys.create(stand.tenant.id, stand.project.id, expires_at=ends)
    await stand.authenticator.authenticate(str(key))
    stand.clock.advance(0.5)
    with pytest.raises(InvalidApiKey):
        await stand.authenticator.authenticate(str(key))


async def test_suspended_tenant_is_told_so_and_comes_back(stand: Stand) -> None:
    key = await stand.key()
    await stand.tenants.move(COMMAND_LINE, stand.tenant.id, "suspended")
    assert await stand.refused(key) == "account_suspended"
    await stand.tenants.move(COMMAND_LINE, stand.tenant.id, "active")
    assert await stand.refused(key) is None


async def test_closing_tenant_has_no_keys_and_does_not_come_back(stand: Stand) -> None:
    key = await stand.key()
    await stand.tenants.move(COMMAND_LINE, stand.tenant.id, "closing")
    assert await stand.refused(key) == "invalid_api_key"
    with pytest.raises(Conflict):
        await stand.tenants.move(COMMAND_LINE, stand.tenant.id, "active")


async def test_archived_project_has_no_keys(stand: Stand) -> None:
    key = await stand.key()
    await stand.projects.archive(COMMAND_LINE, stand.tenant.id, stand.project.id)
    assert await stand.refused(key) == "invalid_api_key"
    with pytest.raises(Conflict):
        await stand.key()


async def test_address_must_be_in_the_tenants_and_in_the_keys_networks(stand: Stand) -> None:
    await stand.change_tenant(allowed_networks=["10.0.0.0/8", "2001:db8::/32"])
    key = await stand.key(allowed_networks=["10.1.0.0/16"])
    addresses = ("10.1.2.3", "::ffff:10.1.2.3", "10.2.0.1", "192.0.2.1", "2001:db8::1", None)
    codes = [await stand.refused(key, address) for address in addresses]
    assert codes == [None, None, *["ip_not_authorized"] * 4]


async def test_wrong_secret_learns_nothing_of_the_keys_standing(stand: Stand) -> None:
    key = await stand.key(allowed_networks=["10.1.0.0/16"])
    await stand.tenants.move(COMMAND_LINE, stand.tenant.id, "suspended")
    wrong = new_key()._replace(id=key.id)
    assert await stand.refused(wrong, "192.0.2.1") == "invalid_api_key"


async def test_models_are_those_that_tenant_project_and_key_allow(stand: Stand) -> None:
    await stand.change_tenant(allowed_models=["a", "b", "c"])
    key = await stand.key(allowed_models=["b", "d"])
    principal = await stand.authenticator.authenticate(str(key))
    assert [m for m in "abcd" if principal.may_use(m)] == ["b"]


async def test_key_of_a_service_account_belongs_to_its_project(stand: Stand) -> None:
    default = await stand.tenants.default_project(stand.tenant)
    place = (COMMAND_LINE, stand.tenant.id)
    account = await stand.projects.create_account(*place, stand.project.id, "ci")
    await stand.key(service_account_id=account.id)
    with pytest.raises(NotFound):
        await stand.keys.create(
            stand.tenant.id, default.id, values={"service_account_id": account.id}
        )


async def test_another_tenants_admin_finds_no_key(stand: Stand) -> None:
    key = await stand.key()
    globex = await stand.tenants.create("globex")
    admin = Administrator(Actor("person", "p"), "tenant_admin", globex.id)
    with pytest.raises(NotFound):
        await stand.keys.find(admin, stand.path(key))
    with pytest.raises(NotFound):
        await stand.keys.revoke(key.id, by=admin)


async def test_last_use_is_written_once_a_minute(stand: Stand) -> None:
    key = await stand.key()
    row = await stand.keys.find(COMMAND_LINE, stand.path(key))
    first = stand.clock.now()

    async def written() -> object:
        await stand.authenticator.authenticate(str(key))
        await stand.authenticator.uses.flush()
        return (await stand.keys.last_used(COMMAND_LINE, stand.tenant.id, [row]))[key.id]

    assert await written() == first
    stand.clock.advance(EVERY_S - 1)
    assert await written() == first
    stand.clock.advance(1)
    assert await written() == stand.clock.now()


async def test_guessing_address_is_stopped_before_the_database(stand: Stand) -> None:
    good = await stand.key()
    await stand.authenticator.authenticate(str(good), "10.0.0.1")

    async def guess(address: str) -> bool:
        try:
            await stand.authenticator.authenticate(str(new_key()), address)
        except RateLimited:
            return False
        except InvalidApiKey:
            return True
        raise AssertionError

    assert sum([await guess("10.0.0.1") for _ in range(200)]) == 20
    assert await guess("10.0.0.2")
    stand.clock.advance(CACHE_S)
    await stand.authenticator.authenticate(str(good), "10.0.0.1")  # a neighbour behind one proxy


@pytest.mark.slow
async def test_cached_key_outlives_postgres_for_the_stated_time(tmp_path: Path) -> None:
    with running_postgres() as server:
        upgrade(server.create_database("outage"))
        database = Database(server.url("outage"))
        stand = await stand_on(database, tmp_path)
        key, unseen = await stand.key(), await stand.key()
        await stand.authenticator.authenticate(str(key))
        server.kill()
        assert await stand.refused(key) is None
        with pytest.raises(Overloaded):
            await stand.authenticator.authenticate(str(unseen))
        stand.clock.advance(OUTAGE_S)
        with pytest.raises(Overloaded):
            await stand.authenticator.authenticate(str(key))
        server.start()
        assert await stand.refused(key) is None
        assert await stand.refused(unseen) is None
        await database.close()


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("192.0.2.1", "10.9.9.9", "192.0.2.1"),  # an untrusted peer says what it likes
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "1.1.1.1, 192.0.2.7, 10.0.0.2", "192.0.2.7"),  # the first is the client's lie
        ("10.0.0.1", "junk", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3", "10.0.0.1"),
        (None, "192.0.2.7", None),
    ],
)
def test_forwarded_addresses_count_from_trusted_proxies_only(
    peer: str | None, forwarded: str | None, address: str | None
) -> None:
    assert client_address(peer, forwarded, networks_of(["10.0.0.0/8"])) == address
