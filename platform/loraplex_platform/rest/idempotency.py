"""A change that is asked for twice with one Idempotency-Key happens once.

The answer is kept for a day. It is stored after the change has been committed: a process that dies
between the two leaves a key that is busy for LEASE, and after that the change is made again.
"""

from datetime import timedelta
from typing import NamedTuple

from sqlalchemy.exc import IntegrityError

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import KeyReused, StillRunning
from loraplex_platform.kit.sealing import Sealer
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.rest.models import IdempotentRequest
from loraplex_platform.rest.repository import IdempotentRepository

KEPT = timedelta(hours=24)
LEASE = timedelta(minutes=1)
LABEL = "loraplex idempotent answers"


class Claim(NamedTuple):
    """Which request this is."""

    caller_id: str
    route: str
    key: str
    fingerprint: str


class Answer(NamedTuple):
    """What was answered the first time."""

    status: int
    headers: list[str]
    body: bytes


class Idempotency:
    def __init__(self, database: Database, secrets: Secrets, clock: Clock) -> None:
        self._database = database
        self._sealer = Sealer(secrets, LABEL)
        self._clock = clock

    async def begin(self, claim: Claim) -> Answer | None:
        """The answer of an earlier request; None: this is the first one, go ahead."""
        try:
            async with self._database.unit_of_work() as session:
                requests = IdempotentRepository(session)
                row = await requests.find(claim.caller_id, claim.route, claim.key)
                if row is not None and self._is_over(row):
                    await requests.remove(row)
                    row = None
                if row is None:
                    started_at = self._clock.now()
                    await requests.add(IdempotentRequest(**claim._asdict(), started_at=started_at))
                    return None
        except IntegrityError as error:  # somebody else was first, a moment ago
            raise StillRunning from error
        if row.fingerprint != claim.fingerprint:
            raise KeyReused
        if row.status is None or row.body is None:
            raise StillRunning
        return Answer(row.status, row.headers or [], self._sealer.open(row.body))

    async def finish(self, claim: Claim, answer: Answer) -> None:
        async with self._database.unit_of_work() as session:
            row = await IdempotentRepository(session).find(claim.caller_id, claim.route, claim.key)
            if row is not None:
                row.status, row.headers = answer.status, answer.headers
                row.body = self._sealer.seal(answer.body)

    async def release(self, claim: Claim) -> None:
        """Nothing was changed: the key is free again."""
        async with self._database.unit_of_work() as session:
            requests = IdempotentRepository(session)
            row = await requests.find(claim.caller_id, claim.route, claim.key)
            if row is not None:
                await requests.remove(row)

    async def sweep(self, limit: int = 500) -> int:
        """Remove what is older than a day; how many there were."""
        async with self._database.unit_of_work() as session:
            requests = IdempotentRepository(session)
            old = await requests.older_than(self._clock.now() - KEPT, limit)
            for row in old:
                await requests.remove(row)
        return len(old)

    def _is_over(self, row: IdempotentRequest) -> bool:
        lives = LEASE if row.status is None else KEPT
        return row.started_at + lives <= self._clock.now()
