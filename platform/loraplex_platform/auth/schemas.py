"""What is said about keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from loraplex_platform.auth.networks import Network
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import ALL_SCOPES, Principal
from loraplex_platform.tenants.schemas import check_networks

MAX_GRACE = timedelta(days=30)


class KeyPath(NamedTuple):
    """Where a key lies."""

    tenant_id: str
    project_id: str
    key_id: str


class Digest(NamedTuple):
    """One secret that a key accepts."""

    hex: str
    pepper_id: str
    until: datetime | None  # None: as long as the key


@dataclass(frozen=True, slots=True)
class KnownKey:
    """What a key's row, its tenant and its project say, without the session they came from."""

    principal: Principal
    digests: tuple[Digest, ...]
    expires_at: datetime | None
    is_suspended: bool
    networks: tuple[tuple[Network, ...], ...]  # the address must be in one of each


def check_scopes(scopes: Sequence[str]) -> None:
    if unknown := set(scopes) - set(ALL_SCOPES):
        raise InvalidRequest(f"unknown scopes: {', '.join(sorted(unknown))}", param="scopes")


def check_key_values(values: Mapping[str, object]) -> None:
    scopes = values.get("scopes")
    if isinstance(scopes, list):
        check_scopes(scopes)
    check_networks(values.get("allowed_networks"))


def check_grace(grace: timedelta) -> None:
    if not timedelta(0) <= grace <= MAX_GRACE:
        raise InvalidRequest(f"grace: 0 to {MAX_GRACE.days} days", param="grace_seconds")
