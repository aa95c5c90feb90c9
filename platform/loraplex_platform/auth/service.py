"""Rules about keys: making, revoking, and finding out who asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from loraplex_platform.auth.keys import (
    PEPPER_LABEL,
    PlainKey,
    digest_of,
    matches,
    new_key,
    parse_key,
)
from loraplex_platform.auth.models import ApiKey
from loraplex_platform.auth.repository import KeyRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidApiKey, InvalidRequest, NotFound
from loraplex_platform.kit.principal import ALL_SCOPES, Principal
from loraplex_platform.kit.recent import Recent
from loraplex_platform.kit.secrets import Secrets

CACHE_S = 1.0  # the longest a revoked key still works
NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class KnownKey:
    """What a key's row says, without the session it came from."""

    principal: Principal
    digest: str
    pepper_id: str
    expires_at: datetime | None


class KeyService:
    """Knows keys by their hashes only."""

    def __init__(self, database: Database, secrets: Secrets, clock: Clock) -> None:
        self._database = database
        self._secrets = secrets
        self._clock = clock
        self._recent: Recent[str, KnownKey] = Recent(clock, CACHE_S)

    async def create(
        self,
        tenant_id: str,
        project_id: str,
        *,
        name: str = "",
        scopes: Sequence[str] = ALL_SCOPES,
        expires_at: datetime | None = None,
    ) -> PlainKey:
        """A new key; this is the only time its secret is seen."""
        if unknown := set(scopes) - set(ALL_SCOPES):
            raise InvalidRequest(f"unknown scopes: {', '.join(sorted(unknown))}", param="scopes")
        key = new_key()
        pepper = self._secrets.derive(PEPPER_LABEL)
        row = ApiKey(
            id=key.id,
            tenant_id=tenant_id,
            project_id=project_id,
            name=name,
            digest=digest_of(key, pepper),
            pepper_id=self._secrets.key_id,
            last_four=key.secret[-4:],
            scopes=list(scopes),
            created_at=self._clock.now(),
            expires_at=expires_at,
        )
        async with self._database.unit_of_work() as session:
            await KeyRepository(session).add(row)
        return key

    async def revoke(self, key_id: str) -> ApiKey:
        """Takes the key out of use; running servers follow within CACHE_S."""
        async with self._database.unit_of_work() as session:
            row = await KeyRepository(session).get(key_id)
            if row is None:
                raise NotFound(f"there is no key {key_id!r}", param="id")
            row.revoked_at = row.revoked_at or self._clock.now()
        self._recent.drop(key_id)
        return row

    async def of_tenant(self, tenant_id: str) -> Sequence[ApiKey]:
        async with self._database.reading() as session:
            return await KeyRepository(session).of_tenant(tenant_id)

    async def authenticate(self, presented: str) -> Principal:
        """The principal of a presented key; the same error whatever is wrong with it."""
        key = parse_key(presented)
        if key is None:
            raise InvalidApiKey
        known = await self._known(key.id)
        pepper_id = known.pepper_id if known else self._secrets.key_id
        pepper = self._secrets.derive_with(pepper_id, PEPPER_LABEL)
        # An unknown id costs the same comparison as a wrong secret.
        is_right = matches(key, pepper or bytes(32), known.digest if known else NO_DIGEST)
        if known is None or pepper is None or not is_right:
            raise InvalidApiKey
        if known.expires_at is not None and known.expires_at <= self._clock.now():
            raise InvalidApiKey
        return known.principal

    async def _known(self, key_id: str) -> KnownKey | None:
        known = self._recent.get(key_id)
        if known is not None:
            return known
        async with self._database.reading() as session:
            row = await KeyRepository(session).get(key_id)
        if row is None or row.revoked_at is not None:
            return None
        known = KnownKey(
            Principal(row.tenant_id, row.project_id, row.id, frozenset(row.scopes)),
            row.digest,
            row.pepper_id,
            row.expires_at,
        )
        self._recent.put(key_id, known)
        return known
