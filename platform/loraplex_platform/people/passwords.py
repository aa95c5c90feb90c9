"""Argon2id, off the event loop and a few at a time: each hash takes 19 MiB."""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

AT_ONCE = 2


class Passwords:
    """OWASP's parameters: 19 MiB, two passes, one lane."""

    def __init__(self) -> None:
        self._hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._nobody = self._hasher.hash("nobody's password")

    async def hash(self, password: str) -> str:
        async with self._slots:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def matches(self, password: str, stored: str | None) -> bool:
        """Without a stored hash it takes as long, and is False."""
        async with self._slots:
            fits = await asyncio.to_thread(self._verify, password, stored or self._nobody)
        return fits and stored is not None

    def _verify(self, password: str, stored: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except VerifyMismatchError:
            return False
