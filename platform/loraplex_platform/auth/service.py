"""Rules about tenants' keys: making, changing, rotating, revoking."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.audit.trail import changing
from loraplex_platform.auth.digests import new_digest
from loraplex_platform.auth.keys import PlainKey, new_key
from loraplex_platform.auth.models import ApiKey
from loraplex_platform.auth.repository import KeyRepository
from loraplex_platform.auth.schemas import KeyPath, check_grace, check_key_values, check_scopes
from loraplex_platform.db.database import Database
from loraplex_platform.events.catalogue import EventType, KeyEvent
from loraplex_platform.events.outbox import emit
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import Conflict, NotFound
from loraplex_platform.kit.principal import ALL_SCOPES, COMMAND_LINE, Administrator
from loraplex_platform.kit.revisions import check_revision
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.tenants.projects import found_account, found_project
from loraplex_platform.tenants.repository import TenantRepository


class KeyService:
    """A key's secret is seen once, when it is made or rotated."""

    def __init__(self, database: Database, secrets: Secrets, clock: Clock) -> None:
        self._database = database
        self._secrets = secrets
        self._clock = clock

    async def create(
        self,
        tenant_id: str,
        project_id: str,
        *,
        name: str = "",
        scopes: Sequence[str] = ALL_SCOPES,
        expires_at: datetime | None = None,
        values: Mapping[str, object] | None = None,
        by: Administrator = COMMAND_LINE,
    ) -> PlainKey:
        """`values`: allowed_models, allowed_networks, service_account_id."""
        check_scopes(scopes)
        check_key_values(values or {})
        key = new_key()
        digest = new_digest(self._secrets, key)
        row = ApiKey(
            id=key.id,
            tenant_id=tenant_id,
            project_id=project_id,
            name=name,
            digest=digest.hex,
            pepper_id=digest.pepper_id,
            last_four=key.secret[-4:],
            scopes=list(scopes),
            created_at=self._clock.now(),
            expires_at=expires_at,
            **(values or {}),
        )
        async with changing(self._database, by, self._clock) as session:
            await self._check_place(session, by, row)
            await KeyRepository(session).add(row)
            await self._tell(session, "api_key.created", row)
        return key

    async def page(
        self,
        by: Administrator,
        tenant_id: str,
        project_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        order: str = "",
    ) -> Sequence[ApiKey]:
        async with self._database.reading(by) as session:
            project = await found_project(session, by, tenant_id, project_id)
            return await KeyRepository(session).page(by, project, after, limit, order)

    async def find(self, by: Administrator, path: KeyPath) -> ApiKey:
        async with self._database.reading(by) as session:
            return await _found(session, by, path)

    async def find_in(self, by: Administrator, tenant_id: str, key_id: str) -> ApiKey:
        """A key of any of the tenant's projects."""
        async with self._database.reading(by) as session:
            key = await KeyRepository(session).find_in(by, tenant_id, key_id)
        if key is None:
            raise NotFound(f"there is no key {key_id!r}", param="key_id")
        return key

    async def look_up(self, by: Administrator, key_id: str) -> ApiKey | None:
        """A key of any tenant that the administrator sees."""
        async with self._database.reading(by) as session:
            key = await KeyRepository(session).get(key_id)
        return key if key is not None and by.sees(key.tenant_id) else None

    async def last_used(
        self, by: Administrator, tenant_id: str, keys: Sequence[ApiKey]
    ) -> dict[str, datetime]:
        async with self._database.reading(by) as session:
            ids = [key.id for key in keys]
            return await KeyRepository(session).last_used(by, tenant_id, ids)

    async def change(
        self,
        by: Administrator,
        path: KeyPath,
        values: Mapping[str, object],
        *,
        revision: int | None = None,
    ) -> ApiKey:
        check_key_values(values)
        async with changing(self._database, by, self._clock) as session:
            key = await _found(session, by, path)
            check_revision(key, revision)
            for name, value in values.items():
                setattr(key, name, value)
        return key

    async def rotate(self, by: Administrator, path: KeyPath, grace: timedelta) -> PlainKey:
        """A new secret for the same key; the old one works until the grace is over."""
        check_grace(grace)
        async with changing(self._database, by, self._clock) as session:
            key = await _found(session, by, path)
            if key.revoked_at is not None:
                raise Conflict("a revoked key cannot be rotated")
            plain = new_key()._replace(id=key.id)
            digest = new_digest(self._secrets, plain)
            key.previous_digest, key.previous_pepper_id = key.digest, key.pepper_id
            key.previous_until = self._clock.now() + grace
            key.digest, key.pepper_id = digest.hex, digest.pepper_id
            key.last_four = plain.secret[-4:]
            await self._tell(session, "api_key.rotated", key)
        return plain

    async def revoke(self, key_id: str, *, by: Administrator = COMMAND_LINE) -> ApiKey:
        """Takes the key out of use; running servers follow within authenticator.CACHE_S."""
        async with changing(self._database, by, self._clock) as session:
            key = await KeyRepository(session).get(key_id)
            if key is None or not by.sees(key.tenant_id):
                raise NotFound(f"there is no key {key_id!r}", param="id")
            if key.revoked_at is None:
                key.revoked_at = self._clock.now()
                await self._tell(session, "api_key.revoked", key)
        return key

    async def remove_account(
        self, by: Administrator, tenant_id: str, project_id: str, account_id: str
    ) -> None:
        """A service account goes; its keys end, and stay to be seen without it."""
        async with changing(self._database, by, self._clock) as session:
            account = await found_account(session, by, tenant_id, project_id, account_id)
            for key in await KeyRepository(session).of_account(account):
                if key.revoked_at is None:
                    key.revoked_at = self._clock.now()
                    await self._tell(session, "api_key.revoked", key)
                key.service_account_id = None
            await session.flush()
            await TenantRepository(session).remove(account)

    async def of_tenant(self, tenant_id: str) -> Sequence[ApiKey]:
        async with self._database.reading() as session:
            return await KeyRepository(session).of_tenant(tenant_id)

    async def _tell(self, session: AsyncSession, type: EventType, key: ApiKey) -> None:
        payload = KeyEvent(key.id, key.project_id, key.name)
        await emit(session, key.tenant_id, type, payload, self._clock.now())

    async def _check_place(self, session: AsyncSession, by: Administrator, key: ApiKey) -> None:
        project = await found_project(session, by, key.tenant_id, key.project_id)
        if project.archived_at is not None:
            raise Conflict("an archived project takes no new keys")
        if key.service_account_id is not None:
            await found_account(session, by, key.tenant_id, key.project_id, key.service_account_id)


async def _found(session: AsyncSession, by: Administrator, path: KeyPath) -> ApiKey:
    key = await KeyRepository(session).find(by, *path)
    if key is None:
        raise NotFound(f"there is no key {path.key_id!r}", param="key_id")
    return key
