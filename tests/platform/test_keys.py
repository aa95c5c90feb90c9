"""Keys: their form, their hashes, and who may use them until when."""

import timeit
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.calls import calling

from loraplex_platform.auth.authenticator import CACHE_S, Authenticator
from loraplex_platform.auth.keys import PlainKey, digest_of, matches, new_key, parse_key
from loraplex_platform.auth.service import KeyService
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import InvalidApiKey
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.tenants.models import Tenant
from loraplex_platform.tenants.service import TenantService


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def key_service(database: Database, tmp_path: Path, clock: ManualClock) -> KeyService:
    return KeyService(database, Secrets.load_or_create(tmp_path), clock)


@pytest.fixture
async def authenticator(
    database: Database, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Authenticator]:
    """Of another process, which hears nothing of changes."""
    other = Database(database.url)
    yield Authenticator(other, Secrets.load_or_create(tmp_path), clock)
    await other.close()


@pytest.fixture
async def acme(database: Database, clock: ManualClock) -> Tenant:
    return await TenantService(database, clock).create("acme")


async def issue(database: Database, key_service: KeyService, tenant: Tenant) -> PlainKey:
    project = await TenantService(database, ManualClock()).default_project(tenant)
    return await key_service.create(tenant.id, project.id)


async def test_key_authenticates_as_its_tenant_and_project(
    database: Database, key_service: KeyService, authenticator: Authenticator, acme: Tenant
) -> None:
    key = await issue(database, key_service, acme)
    principal = await authenticator.authenticate(str(key))
    assert (principal.tenant_id, principal.key_id) == (acme.id, key.id)


async def test_wrong_secret_of_a_known_id_is_refused(
    database: Database, key_service: KeyService, authenticator: Authenticator, acme: Tenant
) -> None:
    key = await issue(database, key_service, acme)
    await authenticator.authenticate(str(key))  # the cache knows the id
    with pytest.raises(InvalidApiKey):
        await authenticator.authenticate(str(new_key()._replace(id=key.id)))


async def test_revoked_key_works_no_longer_than_the_cache_lives(
    database: Database,
    key_service: KeyService,
    authenticator: Authenticator,
    acme: Tenant,
    clock: ManualClock,
) -> None:
    key = await issue(database, key_service, acme)
    await authenticator.authenticate(str(key))
    await key_service.revoke(key.id)
    clock.advance(CACHE_S)
    with pytest.raises(InvalidApiKey):
        await authenticator.authenticate(str(key))


async def test_unknown_key_is_not_remembered_as_unknown(
    database: Database,
    key_service: KeyService,
    authenticator: Authenticator,
    acme: Tenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = new_key()
    with pytest.raises(InvalidApiKey):
        await authenticator.authenticate(str(key))
    monkeypatch.setattr("loraplex_platform.auth.service.new_key", lambda: key)
    await issue(database, key_service, acme)
    assert (await authenticator.authenticate(str(key))).key_id == key.id


async def test_database_holds_no_secret(
    database: Database, key_service: KeyService, acme: Tenant
) -> None:
    key = await issue(database, key_service, acme)
    await database.close()
    files = Path(database.url.removeprefix("sqlite:///")).parent.glob("*.sqlite3*")
    assert not [f for f in files if key.secret.encode() in f.read_bytes()]


async def test_hash_outlives_a_rotation_of_the_secret_file(
    database: Database, key_service: KeyService, acme: Tenant, tmp_path: Path, clock: ManualClock
) -> None:
    key = await issue(database, key_service, acme)
    path = tmp_path / "secret.key"
    path.write_text(f"k2 {'ab' * 32}\n{path.read_text()}")
    rotated = Secrets.load_or_create(tmp_path)
    assert rotated.key_id == "k2"
    assert (await Authenticator(database, rotated, clock).authenticate(str(key))).key_id == key.id


def test_secret_file_is_private_and_made_once(tmp_path: Path) -> None:
    first = Secrets.load_or_create(tmp_path)
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600
    assert Secrets.load_or_create(tmp_path).derive("a") == first.derive("a") != first.derive("b")


@given(st.text())
def test_parse_accepts_only_the_exact_form(text: str) -> None:
    key = parse_key(text)
    assert key is None or str(key) == text


@given(st.binary(min_size=32, max_size=32), st.integers(0, 42))
def test_one_changed_character_never_matches(pepper: bytes, position: int) -> None:
    key = new_key()
    digest = digest_of(key, pepper)
    other = "a" if key.secret[position] != "a" else "b"
    changed = key._replace(secret=key.secret[:position] + other + key.secret[position + 1 :])
    assert parse_key(str(key)) == key
    assert matches(key, pepper, digest)
    assert not matches(changed, pepper, digest)


def test_a_good_secret_is_compared_like_a_bad_one() -> None:
    """The same steps in the same order, the digests by hmac's own comparison, and no quicker.

    Of many times the least counts: a busy machine lengthens most of them, but not all.
    """
    key, pepper = new_key(), bytes(32)
    digest, other = digest_of(key, pepper), new_key().secret
    near = key._replace(secret=key.secret[:-1] + ("a" if key.secret[-1] != "a" else "b"))
    presented = (key, near, key._replace(secret=other))
    compared = []
    for each in presented:
        with calling() as calls:
            matches(each, pepper, digest)
        compared.append(calls)
    assert compared[0] == compared[1] == compared[2]
    assert "compare_digest" in compared[0]
    least_s = [
        min(timeit.repeat(partial(matches, k, pepper, digest), number=20, repeat=300))
        for k in presented
    ]
    assert max(least_s) < 1.25 * min(least_s)
