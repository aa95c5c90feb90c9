"""The form of a key: `lpx_<id>_<secret>`, and the hash that is stored of it."""

import hashlib
import hmac
import re
import secrets
import string
from typing import NamedTuple

ALPHABET = string.ascii_letters + string.digits
FORM = re.compile(r"lpx_([A-Za-z0-9]{16})_([A-Za-z0-9]{43})")
PEPPER_LABEL = "loraplex api key pepper"


class PlainKey(NamedTuple):
    """A key as its owner holds it; exists only while it is made or presented."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"lpx_{self.id}_{self.secret}"

    def __repr__(self) -> str:
        return f"PlainKey(id={self.id!r})"


def new_key() -> PlainKey:
    """62^43 secrets: more than 256 bits."""
    return PlainKey(_random(16), _random(43))


def parse_key(text: str) -> PlainKey | None:
    match = FORM.fullmatch(text)
    return None if match is None else PlainKey(match[1], match[2])


def digest_of(key: PlainKey, pepper: bytes) -> str:
    return hmac.new(pepper, str(key).encode(), hashlib.sha256).hexdigest()


def matches(key: PlainKey, pepper: bytes, digest: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(digest_of(key, pepper), digest)


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
