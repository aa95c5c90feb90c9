"""Rules about admin keys, and finding out which administrator asks."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.auth.digests import is_right, new_digest
from loraplex_platform.auth.keys import PlainKey, new_key, parse_key
from loraplex_platform.auth.models import AdminKey
from loraplex_platform.auth.repository import KeyRepository
from loraplex_platform.auth.schemas import Digest
from loraplex_platform.auth.throttle import Throttle
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidApiKey, NotFound
from loraplex_platform.kit.principal import COMMAND_LINE, Actor, Administrator, Role
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.kit.roles import check_role
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.tenants.service import found


class AdminKeyService:
    """Admin keys are read from the database each time: a revoked one ends at once."""

    def __init__(self, database: Database, secrets: Secrets, clock: Clock) -> None:
        self._database = database
        self._secrets = secrets
        self._clock = clock
        self._throttle = Throttle(clock)

    async def authenticate(self, presented: str, address: str | None = None) -> Administrator:
        key = parse_key(presented, "lpxadmin")
        if key is None:
            raise InvalidApiKey
        self._throttle.check(address)
        async with self._database.reading() as session:
            row = await KeyRepository(session).admin_key(key.id)
        now = self._clock.now()
        digests = () if row is None else (Digest(row.digest, row.pepper_id, None),)
        if not is_right(self._secrets, key, digests, now) or row is None:
            self._throttle.failed(address)
            raise InvalidApiKey
        if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
            raise InvalidApiKey
        return Administrator(Actor("admin_key", row.id, row.name), _role(row), row.tenant_id)

    async def create(
        self,
        name: str,
        role: str,
        *,
        tenant_id: str | None = None,
        expires_at: datetime | None = None,
        by: Administrator = COMMAND_LINE,
    ) -> PlainKey:
        """Nobody makes a key that may do more than they may."""
        check_role(by, role, tenant_id)
        key = new_key("lpxadmin")
        digest = new_digest(self._secrets, key)
        row = AdminKey(
            id=key.id,
            tenant_id=tenant_id,
            name=name,
            role=role,
            digest=digest.hex,
            pepper_id=digest.pepper_id,
            last_four=key.secret[-4:],
            created_at=self._clock.now(),
            expires_at=expires_at,
        )
        async with changing(self._database, by, self._clock) as session:
            if tenant_id is not None:
                await found(session, by, tenant_id)
            await KeyRepository(session).add(row)
        return key

    async def page(
        self, by: Administrator, *, after: str | None = None, limit: int = 20
    ) -> Sequence[AdminKey]:
        async with self._database.reading(by) as session:
            return await KeyRepository(session).admin_keys(by, after, limit)

    async def find(self, by: Administrator, key_id: str) -> AdminKey:
        async with self._database.reading(by) as session:
            return await _found(session, by, key_id)

    async def rename(
        self, by: Administrator, key_id: str, name: str, *, revision: int | None = None
    ) -> AdminKey:
        async with changing(self._database, by, self._clock) as session:
            row = await _found(session, by, key_id)
            check_role(by, row.role, row.tenant_id)
            check_revision(row, revision)
            row.name = name
        return row

    async def revoke(self, by: Administrator, key_id: str) -> AdminKey:
        async with changing(self._database, by, self._clock) as session:
            row = await _found(session, by, key_id)
            check_role(by, row.role, row.tenant_id)
            row.revoked_at = row.revoked_at or self._clock.now()
        return row


async def _found(session: AsyncSession, by: Administrator, key_id: str) -> AdminKey:
    row = await KeyRepository(session).find_admin_key(by, key_id)
    if row is None:
        raise NotFound(f"there is no admin key {key_id!r}", param="key_id")
    return row


def _role(row: AdminKey) -> Role:
    role: Role = row.role  # type: ignore[assignment]  # check_role let it in
    return role
