"""Secrets at rest: encrypted with a key that is not in the database."""

import base64

from cryptography.fernet import Fernet, MultiFernet

from loraplex_platform.kit.secrets import Secrets


class Sealer:
    """Seals with the installation's newest secret, opens with any that it still knows."""

    def __init__(self, secrets: Secrets, label: str) -> None:
        keys = [base64.urlsafe_b64encode(key) for key in secrets.derive_all(label)]
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def seal(self, plain: bytes) -> bytes:
        return self._fernet.encrypt(plain)

    def open(self, sealed: bytes) -> bytes:
        """Raises cryptography.fernet.InvalidToken when its secret is gone."""
        return self._fernet.decrypt(sealed)
