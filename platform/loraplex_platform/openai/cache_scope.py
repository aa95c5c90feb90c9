"""What keeps one tenant's cached prefixes from another's: a value that only the server can make."""

import hashlib
import hmac

from loraplex_platform.kit.secrets import Secrets

LABEL = "loraplex cache scope"


class CacheScopes:
    def __init__(self, secrets: Secrets) -> None:
        self._key = secrets.derive(LABEL)

    def of(self, tenant_id: str) -> str:
        return hmac.new(self._key, tenant_id.encode(), hashlib.sha256).hexdigest()
