"""The installation's secret: one file, from which every other key is derived by label."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Self


def hkdf(secret: bytes, label: str, length: int = 32) -> bytes:
    """RFC 5869 with SHA-256, an empty salt and the label as info."""
    key = hmac.digest(bytes(32), secret, hashlib.sha256)
    out, block = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + label.encode() + bytes([counter]), hashlib.sha256)
        out += block
    return out[:length]


class BadSecretFile(Exception):
    """The secret file cannot be used; carries its path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class Secrets:
    """Named secrets, newest first: the first one signs, the others still verify."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self._keys = keys
        self.key_id = next(iter(keys))

    @classmethod
    def load_or_create(cls, home: Path) -> Self:
        """Read `home/secret.key` (lines of `<key id> <hex>`), creating it with mode 600 once."""
        path = home / "secret.key"
        if not path.exists():
            _create(path)
        if path.stat().st_mode & 0o077:
            raise BadSecretFile(path, "must be readable by its owner only (chmod 600)")
        try:
            pairs = [line.split() for line in path.read_text().splitlines() if line.strip()]
            keys = {key_id: bytes.fromhex(value) for key_id, value in pairs}
        except ValueError as error:
            raise BadSecretFile(path, "expected lines of «<key id> <hex>»") from error
        if not keys or min(map(len, keys.values())) < 32:
            raise BadSecretFile(path, "expected at least one secret of 32 bytes")
        return cls(keys)

    def derive(self, label: str) -> bytes:
        """The 32-byte key for this label, from the newest secret."""
        return hkdf(self._keys[self.key_id], label)

    def derive_all(self, label: str) -> list[bytes]:
        """The keys for this label from every secret, newest first."""
        return [hkdf(secret, label) for secret in self._keys.values()]

    def derive_with(self, key_id: str, label: str) -> bytes | None:
        """The same from the named secret; None when that is no longer known."""
        secret = self._keys.get(key_id)
        return None if secret is None else hkdf(secret, label)


def _create(path: Path) -> None:
    """Write the file whole or not at all, whoever comes first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"k{secrets.token_hex(4)} {secrets.token_hex(32)}\n")
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first; its secret is the one
    finally:
        draft.unlink()
