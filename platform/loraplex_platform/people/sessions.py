"""Logging in and out: server-side sessions that the console keeps in a cookie."""

import hashlib
import hmac
import secrets as random
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.auth.throttle import Throttle
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidLogin
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.principal import Actor
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.people.models import LoginSession, Person
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.repository import Opened, PeopleRepository
from loraplex_platform.people.schemas import Visitor, administrator_of, email_of

SESSION_LIVES = timedelta(hours=12)
IDLE_LIVES = timedelta(minutes=30)
SEEN_EVERY = timedelta(minutes=1)  # how often a session that is used is written
PROVIDER = Actor("system", "oidc")
FORM_LABEL = "loraplex session forms"


class SessionService:
    def __init__(
        self, database: Database, secrets: Secrets, passwords: Passwords, clock: Clock
    ) -> None:
        self._database = database
        self._secrets = secrets
        self._passwords = passwords
        self._clock = clock
        self._throttle = Throttle(clock, burst=10, every_s=10.0)

    async def open(self, email: str, password: str, address: str | None = None) -> str:
        """A new session's token, for the cookie; the same error whatever is wrong.

        Too many failures, from one address or for one person, are refused for a while.
        """
        email = email.strip().lower()[:256]
        for subject in (address or "", email):
            self._throttle.check(subject)
        async with self._database.reading() as session:
            person = await PeopleRepository(session).with_email(email)
        stored = person.password_hash if person is not None and person.state == "active" else None
        if not await self._passwords.matches(password[:1024], stored) or person is None:
            for subject in (address or "", email):
                self._throttle.failed(subject)
            raise InvalidLogin
        return await self._open(person, address)

    async def open_verified(self, email: str, new_role: str | None, address: str | None) -> str:
        """For whom a provider vouches; who is not known is made with the role, if there is one."""
        email = email_of(email)
        async with self._database.reading() as session:
            person = await PeopleRepository(session).with_email(email)
        if person is None and new_role is not None:
            person = Person(
                id=new_id("per"),
                tenant_id=None,
                email=email,
                name="",
                role=new_role,
                state="active",
                created_at=self._clock.now(),
            )
            async with changing(self._database, PROVIDER, self._clock) as session:
                await PeopleRepository(session).add(person)
        if person is None or person.state == "disabled":
            raise InvalidLogin("You have no account here: ask whoever runs the platform.")
        return await self._open(person, address)

    async def _open(self, person: Person, address: str | None) -> str:
        """Who was invited and has come is active."""
        token, now = random.token_urlsafe(32), self._clock.now()
        opened = LoginSession(
            id=new_id("ses"),
            tenant_id=person.tenant_id,
            person_id=person.id,
            digest=_digest(token),
            address=address,
            created_at=now,
            last_seen_at=now,
            expires_at=now + SESSION_LIVES,
        )
        actor = administrator_of(person).at("", address).actor
        async with changing(self._database, actor, self._clock) as session:
            people = PeopleRepository(session)
            await people.add(opened)
            invited = await people.with_id(person.id)
            if invited is not None and invited.state == "invited":
                invited.state = "active"
        return token

    async def visitor(self, token: str, *, is_at_work: bool = True) -> Visitor | None:
        """Who holds this token; None when it is unknown, over, or its person is disabled.

        A page that refreshes itself is no sign of somebody at work, and keeps no session alive.
        """
        async with self._database.reading() as session:
            opened = await self._opened(session, token)
        if opened is None or opened.person.state != "active":
            return None
        if is_at_work and opened.session.last_seen_at <= self._clock.now() - SEEN_EVERY:
            await self._see(opened.session)
        return Visitor(opened.person, opened.session.id, administrator_of(opened.person))

    async def close(self, token: str) -> None:
        """The token is worth nothing from here on."""
        visitor = await self.visitor(token)
        if visitor is None:
            return
        async with changing(self._database, visitor.administrator.actor, self._clock) as session:
            people = PeopleRepository(session)
            opened = await self._opened(session, token)
            if opened is not None:
                await people.remove(opened.session)

    async def sweep(self, limit: int = 500) -> int:
        """Remove sessions that are over; how many there were."""
        actor = Actor("system", "sweeper")
        async with changing(self._database, actor, self._clock) as session:
            people = PeopleRepository(session)
            now = self._clock.now()
            ended = await people.ended_sessions(now, now - IDLE_LIVES, limit)
            for opened in ended:
                await people.remove(opened)
        return len(ended)

    def form_token(self, session_id: str) -> str:
        """What every form of this session carries, so that no other site can send one."""
        key = self._secrets.derive(FORM_LABEL)
        return hmac.new(key, session_id.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, session_id: str, presented: str) -> bool:
        return hmac.compare_digest(self.form_token(session_id).encode(), presented.encode())

    async def _opened(self, session: AsyncSession, token: str) -> Opened | None:
        now = self._clock.now()
        return await PeopleRepository(session).opened(_digest(token), now, now - IDLE_LIVES)

    async def _see(self, opened: LoginSession) -> None:
        async with self._database.unit_of_work() as session:
            await PeopleRepository(session).see(opened, self._clock.now())


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
