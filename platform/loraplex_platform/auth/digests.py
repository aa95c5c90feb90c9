"""Whether a presented secret is the right one, without telling how it is wrong."""

from collections.abc import Sequence
from datetime import datetime

from loraplex_platform.auth.keys import PEPPER_LABEL, PlainKey, digest_of, matches
from loraplex_platform.auth.schemas import Digest
from loraplex_platform.kit.secrets import Secrets

NO_DIGEST = "0" * 64


def new_digest(secrets: Secrets, key: PlainKey) -> Digest:
    return Digest(digest_of(key, secrets.derive(PEPPER_LABEL)), secrets.key_id, None)


def is_right(secrets: Secrets, key: PlainKey, digests: Sequence[Digest], now: datetime) -> bool:
    """An unknown key (no digest) costs the same comparison as a wrong secret."""
    return any(
        [  # a list: every digest is compared, whichever fits
            _fits(secrets, key, digest) and (digest.until is None or digest.until > now)
            for digest in digests or (Digest(NO_DIGEST, secrets.key_id, None),)
        ]
    )


def _fits(secrets: Secrets, key: PlainKey, digest: Digest) -> bool:
    pepper = secrets.derive_with(digest.pepper_id, PEPPER_LABEL)
    return matches(key, pepper or bytes(32), digest.hex) and pepper is not None
