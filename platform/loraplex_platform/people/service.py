"""Rules about people: invited, given a password through a one-time link, changed, removed."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.auth.digests import is_right, new_digest
from loraplex_platform.auth.keys import PlainKey, new_key, parse_key
from loraplex_platform.auth.schemas import Digest
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, InvalidRequest, NotFound
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import COMMAND_LINE, Administrator
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.kit.roles import check_role
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.people.models import OneTimeLink, Person
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.repository import PeopleRepository
from loraplex_platform.people.schemas import (
    Invitation,
    Purpose,
    administrator_of,
    check_password,
    email_of,
)
from loraplex_platform.tenants.service import found

LINK_LIVES = {"invite": timedelta(days=7), "reset": timedelta(hours=1)}


class PeopleService:
    """The platform sends no mail: who makes a link passes it on."""

    def __init__(
        self, database: Database, secrets: Secrets, passwords: Passwords, clock: Clock
    ) -> None:
        self._database = database
        self._secrets = secrets
        self._passwords = passwords
        self._clock = clock

    async def invite(
        self,
        email: str,
        role: str,
        *,
        name: str = "",
        tenant_id: str | None = None,
        by: Administrator = COMMAND_LINE,
    ) -> Invitation:
        """A new person, of the platform's staff when no tenant is given."""
        check_role(by, role, tenant_id)
        person = Person(
            id=new_id("per"),
            tenant_id=tenant_id,
            email=email_of(email),
            name=name,
            role=role,
            state="invited",
            created_at=self._clock.now(),
        )
        try:
            async with changing(self._database, by, self._clock) as session:
                if tenant_id is not None:
                    await found(session, by, tenant_id)
                await PeopleRepository(session).add(person)
                key = await self._link(session, person, "invite")
        except IntegrityError as error:
            raise Conflict("somebody has this e-mail address already", param="email") from error
        return Invitation(person, str(key))

    async def reset(self, by: Administrator, tenant_id: str | None, person_id: str) -> Invitation:
        """A link to a new password; the old one works until the link is used."""
        async with changing(self._database, by, self._clock) as session:
            person = await _found(session, by, tenant_id, person_id)
            check_role(by, person.role, tenant_id)
            if person.state == "disabled":
                raise Conflict("a disabled person gets no link")
            key = await self._link(session, person, "reset")
        return Invitation(person, str(key))

    async def redeem(self, token: str, password: str, address: str | None = None) -> Person:
        """Set the password that a link allows; ends the person's sessions and other links."""
        check_password(password)
        key = parse_key(token, "lpxlink")
        if key is None:
            raise NotFound("this link is not valid")
        password_hash = await self._passwords.hash(password)
        async with self._database.reading() as session:
            person = await self._holder(session, key)
        actor = administrator_of(person).at("", address).actor
        async with changing(self._database, actor, self._clock) as session:
            person = await self._holder(session, key, lock=True)
            person.password_hash = password_hash
            person.state = "active"
            people = PeopleRepository(session)
            for link in await people.links_of(person.id):
                link.used_at = link.used_at or self._clock.now()
            for opened in await people.sessions_of(person.id):
                await people.remove(opened)
        return person

    async def page(
        self,
        by: Administrator,
        tenant_id: str | None,
        *,
        after: str | None = None,
        limit: int = 20,
        order: str = "",
    ) -> Sequence[Person]:
        async with self._database.reading(by) as session:
            if tenant_id is not None:
                await found(session, by, tenant_id)
            return await PeopleRepository(session).page(by, tenant_id, after, limit, order)

    async def find(self, by: Administrator, tenant_id: str | None, person_id: str) -> Person:
        async with self._database.reading(by) as session:
            return await _found(session, by, tenant_id, person_id)

    async def with_email(self, email: str) -> Person:
        """For the operator's commands."""
        async with self._database.reading() as session:
            person = await PeopleRepository(session).with_email(email_of(email))
        if person is None:
            raise NotFound("nobody has this e-mail address", param="email")
        return person

    async def change(
        self,
        by: Administrator,
        tenant_id: str | None,
        person_id: str,
        values: Mapping[str, object],
        *,
        revision: int | None = None,
    ) -> Person:
        """Name, role or state; who is disabled, or gets another role, is logged out."""
        async with changing(self._database, by, self._clock) as session:
            person = await _found(session, by, tenant_id, person_id)
            check_role(by, person.role, tenant_id)
            check_revision(person, revision)
            if "role" in values:
                check_role(by, str(values["role"]), tenant_id)
            _check_state(person, values)
            await self._keep_an_owner(session, by, person, values)
            is_moved = values.get("role", person.role) != person.role
            for name, value in values.items():
                setattr(person, name, value)
            if is_moved or person.state == "disabled":
                await _log_out(session, person)
        return person

    async def remove(self, by: Administrator, tenant_id: str | None, person_id: str) -> None:
        """The audit log goes on naming them."""
        async with changing(self._database, by, self._clock) as session:
            person = await _found(session, by, tenant_id, person_id)
            check_role(by, person.role, tenant_id)
            await self._keep_an_owner(session, by, person, {"state": "disabled"})
            await _log_out(session, person)
            for link in await PeopleRepository(session).links_of(person.id):
                await PeopleRepository(session).remove(link)
            await PeopleRepository(session).remove(person)

    async def _link(self, session: AsyncSession, person: Person, purpose: Purpose) -> PlainKey:
        key, now = new_key("lpxlink"), self._clock.now()
        digest = new_digest(self._secrets, key)
        link = OneTimeLink(
            id=key.id,
            tenant_id=person.tenant_id,
            person_id=person.id,
            purpose=purpose,
            digest=digest.hex,
            pepper_id=digest.pepper_id,
            created_at=now,
            expires_at=now + LINK_LIVES[purpose],
        )
        await PeopleRepository(session).add(link)
        return key

    async def _holder(self, session: AsyncSession, key: PlainKey, *, lock: bool = False) -> Person:
        """Whose link this is, while it may be used."""
        link = await PeopleRepository(session).link(key.id, lock=lock)
        now = self._clock.now()
        digests = () if link is None else (Digest(link.digest, link.pepper_id, link.expires_at),)
        if not is_right(self._secrets, key, digests, now) or link is None or link.used_at:
            raise NotFound("this link is not valid")
        person = await PeopleRepository(session).with_id(link.person_id)
        if person is None or person.state == "disabled":
            raise NotFound("this link is not valid")
        return person

    async def _keep_an_owner(
        self,
        session: AsyncSession,
        by: Administrator,
        person: Person,
        values: Mapping[str, object],
    ) -> None:
        """The platform never loses its last owner who can log in."""
        stays = values.get("role", "owner") == "owner" and values.get("state") != "disabled"
        if person.role != "owner" or person.state != "active" or stays:
            return
        staff = await PeopleRepository(session).page(by, None, None, 10_000)
        if not any(p.role == "owner" and p.state == "active" and p is not person for p in staff):
            raise Conflict("the platform keeps at least one owner")


def _check_state(person: Person, values: Mapping[str, object]) -> None:
    state = values.get("state", person.state)
    if state not in ("active", "disabled", person.state):
        raise InvalidRequest("state must be active or disabled", param="state")
    if state == "active" and person.password_hash is None:
        raise Conflict("somebody without a password becomes active by their invitation")


async def _log_out(session: AsyncSession, person: Person) -> None:
    people = PeopleRepository(session)
    for opened in await people.sessions_of(person.id):
        await people.remove(opened)


async def _found(
    session: AsyncSession, by: Administrator, tenant_id: str | None, person_id: str
) -> Person:
    if tenant_id is None and by.tenant_id is not None:
        raise NotFound(f"there is no person {person_id!r}", param="person_id")
    person = await PeopleRepository(session).find(by, tenant_id, person_id)
    if person is None:
        raise NotFound(f"there is no person {person_id!r}", param="person_id")
    return person
