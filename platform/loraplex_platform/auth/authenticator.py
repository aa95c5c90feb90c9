"""Finding out who asks: a tenant's key, from where, and whether it may still be used."""

from collections.abc import Iterable

from loraplex_platform.auth.digests import is_right
from loraplex_platform.auth.keys import parse_key
from loraplex_platform.auth.networks import is_within, networks_of
from loraplex_platform.auth.repository import Holder, KeyRepository
from loraplex_platform.auth.schemas import Digest, KnownKey
from loraplex_platform.auth.throttle import Throttle
from loraplex_platform.auth.uses import KeyUses
from loraplex_platform.db.database import UNREACHABLE, Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import InvalidApiKey, Overloaded, PermissionDenied
from loraplex_platform.kit.principal import Principal
from loraplex_platform.kit.recent import Recent
from loraplex_platform.kit.secrets import Secrets

CACHE_S = 1.0  # the longest a revoked key still works
OUTAGE_S = 60.0  # how long a key that was good is believed while the database is away


class Authenticator:
    """Knows keys by their hashes only; unknown ones are never remembered."""

    def __init__(self, database: Database, secrets: Secrets, clock: Clock) -> None:
        self._database = database
        self._secrets = secrets
        self._clock = clock
        self._recent: Recent[str, KnownKey] = Recent(clock, OUTAGE_S)
        self._throttle = Throttle(clock)
        self.uses = KeyUses(database, clock)
        database.news.subscribe(self._forget)

    async def authenticate(self, presented: str, address: str | None = None) -> Principal:
        """The principal of a presented key; the same error whatever is wrong with the key.

        Only who holds the right secret learns that the key's tenant is suspended or that the
        address is not allowed.
        """
        key = parse_key(presented)
        if key is None:
            raise InvalidApiKey
        known = await self._known(key.id, address)
        now = self._clock.now()
        right = is_right(self._secrets, key, known.digests if known else (), now)
        if known is None or not right:
            self._throttle.failed(address)
            raise InvalidApiKey
        if known.expires_at is not None and known.expires_at <= now:
            raise InvalidApiKey
        _check_standing(known, address)
        self.uses.note(known.principal)
        return known.principal

    def _forget(self, tenants: frozenset[str | None]) -> None:
        """Read these tenants' keys again when they come next."""
        self._recent.drop_where(lambda _, known: known.principal.tenant_id in tenants)

    async def _known(self, key_id: str, address: str | None) -> KnownKey | None:
        known = self._recent.get(key_id, CACHE_S)
        if known is not None:
            return known
        known_once = self._recent.get(key_id)
        if known_once is None:
            self._throttle.check(address)  # what was good a minute ago is not a guess
        try:
            async with self._database.reading() as session:
                holder = await KeyRepository(session).holder(key_id)
        except UNREACHABLE as error:
            if known_once is None:
                raise Overloaded("The database is away.", retry_after_s=1.0) from error
            return known_once
        if holder is None or not _is_alive(holder):
            self._recent.drop(key_id)
            return None
        known = _known_of(holder)
        self._recent.put(key_id, known)
        return known


def _is_alive(holder: Holder) -> bool:
    return (
        holder.key.revoked_at is None
        and holder.project.archived_at is None
        and holder.tenant.state in ("active", "suspended")
    )


def _known_of(holder: Holder) -> KnownKey:
    key, tenant, project = holder
    digests = [Digest(key.digest, key.pepper_id, None)]
    if key.previous_digest is not None and key.previous_pepper_id is not None:
        digests.append(Digest(key.previous_digest, key.previous_pepper_id, key.previous_until))
    principal = Principal(
        key.tenant_id,
        key.project_id,
        key.id,
        frozenset(key.scopes),
        _common(tenant.allowed_models, project.allowed_models, key.allowed_models),
        _common(tenant.allowed_regions),
    )
    networks = [n for n in (tenant.allowed_networks, key.allowed_networks) if n is not None]
    return KnownKey(
        principal,
        tuple(digests),
        key.expires_at,
        tenant.state == "suspended",
        tuple(map(networks_of, networks)),
    )


def _common(*lists: Iterable[str] | None) -> frozenset[str] | None:
    """What every list allows; None allows everything."""
    given = [frozenset(names) for names in lists if names is not None]
    return frozenset.intersection(*given) if given else None


def _check_standing(known: KnownKey, address: str | None) -> None:
    if known.is_suspended:
        raise PermissionDenied("Your account is suspended.", code="account_suspended")
    if not all(is_within(address, networks) for networks in known.networks):
        raise PermissionDenied(
            "This key may not be used from your address.", code="ip_not_authorized"
        )
