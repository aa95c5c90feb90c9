"""Statements on people, links and sessions."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import or_
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.paging import Sorting
from loraplex_platform.db.scope import across_tenants, change_across_tenants, visible_to
from loraplex_platform.kit.principal import Administrator
from loraplex_platform.people.models import LoginSession, OneTimeLink, Person


class Opened(NamedTuple):
    """A session with its person."""

    session: LoginSession
    person: Person


PEOPLE = Sorting(
    Person.id,
    {"email": Person.email, "name": Person.name, "role": Person.role, "state": Person.state},
)


class PeopleRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, row: Person | OneTimeLink | LoginSession) -> None:
        self._session.add(row)
        await self._session.flush()

    async def remove(self, row: Person | OneTimeLink | LoginSession) -> None:
        await self._session.delete(row)
        await self._session.flush()

    async def find(self, by: Administrator, tenant_id: str | None, person_id: str) -> Person | None:
        statement = visible_to(by, Person).where(
            Person.tenant_id == tenant_id, Person.id == person_id
        )
        return await self._session.scalar(statement)

    async def page(
        self,
        by: Administrator,
        tenant_id: str | None,
        after: str | None,
        limit: int,
        order: str = "",
    ) -> Sequence[Person]:
        own = visible_to(by, Person).where(Person.tenant_id == tenant_id)
        return await PEOPLE.page(self._session, own, order, after, limit)

    async def of_tenant(self, tenant_id: str) -> Sequence[Person]:
        statement = across_tenants(Person).where(Person.tenant_id == tenant_id)
        return (await self._session.scalars(statement)).all()

    async def with_email(self, email: str) -> Person | None:
        """Anybody: this is how we learn who logs in."""
        return await self._session.scalar(across_tenants(Person).where(Person.email == email))

    async def with_id(self, person_id: str) -> Person | None:
        """Anybody: whose link or session it is."""
        return await self._session.scalar(across_tenants(Person).where(Person.id == person_id))

    async def link(self, link_id: str, *, lock: bool = False) -> OneTimeLink | None:
        statement = across_tenants(OneTimeLink).where(OneTimeLink.id == link_id)
        return await self._session.scalar(statement.with_for_update() if lock else statement)

    async def links_of(self, person_id: str) -> Sequence[OneTimeLink]:
        statement = across_tenants(OneTimeLink).where(OneTimeLink.person_id == person_id)
        return (await self._session.scalars(statement)).all()

    async def opened(self, digest: str, now: datetime, seen_after: datetime) -> Opened | None:
        statement = (
            across_tenants(LoginSession)
            .join(Person, Person.id == LoginSession.person_id)
            .add_columns(Person)
            .where(
                LoginSession.digest == digest,
                LoginSession.expires_at > now,
                LoginSession.last_seen_at > seen_after,
            )
        )
        row = (await self._session.execute(statement)).one_or_none()
        return None if row is None else Opened(*row)

    async def see(self, opened: LoginSession, now: datetime) -> None:
        """Past the audit log: nobody decides anything by looking."""
        mine = change_across_tenants(LoginSession).where(LoginSession.id == opened.id)
        await self._session.execute(mine.values(last_seen_at=now))

    async def sessions_of(self, person_id: str) -> Sequence[LoginSession]:
        statement = across_tenants(LoginSession).where(LoginSession.person_id == person_id)
        return (await self._session.scalars(statement)).all()

    async def ended_sessions(
        self, now: datetime, seen_after: datetime, limit: int
    ) -> Sequence[LoginSession]:
        is_over = or_(LoginSession.expires_at <= now, LoginSession.last_seen_at <= seen_after)
        statement = across_tenants(LoginSession).where(is_over)
        return (await self._session.scalars(statement.limit(limit))).all()
