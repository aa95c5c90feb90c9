"""The form of a key: `lpx_<id>_<secret>`, and the hash that is stored of it.

Admin keys and one-time links have prefixes of their own: one realm never takes another's keys.
"""

import hashlib
import hmac
import secrets
import string
from typing import Literal, NamedTuple

from loraplex_platform.kit.redaction import KEY_FORM

ALPHABET = string.ascii_letters + string.digits
PEPPER_LABEL = "loraplex api key pepper"
Realm = Literal["lpx", "lpxadmin", "lpxlink"]


class PlainKey(NamedTuple):
    """A key as its owner holds it; exists only while it is made or presented."""

    id: str
    secret: str
    realm: Realm = "lpx"

    def __str__(self) -> str:
        return f"{self.realm}_{self.id}_{self.secret}"

    def __repr__(self) -> str:
        return f"PlainKey(id={self.id!r})"


def new_key(realm: Realm = "lpx") -> PlainKey:
    """62^43 secrets: more than 256 bits."""
    return PlainKey(_random(16), _random(43), realm)


def parse_key(text: str, realm: Realm = "lpx") -> PlainKey | None:
    match = KEY_FORM.fullmatch(text)
    if match is None or match[1] != realm:
        return None
    return PlainKey(match[2], match[3], realm)


def digest_of(key: PlainKey, pepper: bytes) -> str:
    return hmac.new(pepper, str(key).encode(), hashlib.sha256).hexdigest()


def matches(key: PlainKey, pepper: bytes, digest: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(digest_of(key, pepper), digest)


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
