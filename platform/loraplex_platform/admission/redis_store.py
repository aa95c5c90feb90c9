"""The limiter's state in a Redis (6.2 or newer) that all API processes share: one script, one step."""

import asyncio
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from loraplex_platform.admission.limits import Charge, Claim, Outcome, Reading
from loraplex_platform.admission.owed import Ending
from loraplex_platform.admission.store import StoreUnavailable

TIMEOUT_S = 0.1
SCRIPT = Path(__file__).with_name("limiter.lua").read_text()
Operation = Literal["reserve", "settle", "release", "read", "seed"]
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation of the script."""

    operation: Operation
    claim: Claim
    ttl_s: float = 0.0
    actual: Mapping[str, int] = field(default_factory=dict)

    def keys(self) -> list[str]:
        """One hash slot a tenant, so that a cluster serves too."""
        prefix = f"lpx:{{{self.claim.tenant}}}:"
        keys = [f"{prefix}claim:{self.claim.id}"]
        for limit, _ in self.claim.charges:
            keys += [f"{prefix}{limit.key}", f"{prefix}{limit.key}:holds"]
        return keys

    def arguments(self) -> list[str | int]:
        claim = self.claim
        arguments: list[str | int] = [self.operation, claim.id, math.ceil(self.ttl_s * 1000)]
        arguments.append(len(claim.charges))
        for limit, amount in claim.charges:
            dimension = limit.dimension
            used = self.actual.get(dimension.unit, amount)
            period = limit.ends_ms if dimension.kind == "window" else dimension.period_s * 1000
            arguments += [dimension.kind, limit.value, amount, used, period]
        return arguments


class RedisStore:
    """One round trip a call; whatever goes wrong is StoreUnavailable after at most 100 ms."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S, max_connections: int = 64) -> None:
        self._timeout_s = timeout_s
        self._pool: ConnectionPool = ConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=timeout_s,  # also bounds what closes a cancelled connection
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            max_connections=max_connections,
        )
        self._redis = Redis(connection_pool=self._pool)
        self._turn = asyncio.Semaphore(max_connections)

    @property
    def is_degraded(self) -> bool:
        return False

    async def reserve(
        self,
        claim: Claim,
        ttl_s: float,
        *,
        after: Sequence[Ending] = (),
        now_ms: int | None = None,
    ) -> Outcome:
        steps = [_step_of(ending) for ending in after]
        *_, (done, readings) = await self._run([*steps, _Step("reserve", claim, ttl_s)], now_ms)
        return Outcome(done, readings)

    async def settle(
        self, claim: Claim, actual: Mapping[str, int], *, now_ms: int | None = None
    ) -> bool:
        ((done, _),) = await self._run([_Step("settle", claim, actual=actual)], now_ms)
        return done

    async def release(self, claim: Claim, unit: str, *, now_ms: int | None = None) -> None:
        await self._run([_Step("release", claim.leases(unit))], now_ms)

    async def end(self, endings: Sequence[Ending], *, now_ms: int | None = None) -> None:
        await self._run([_step_of(ending) for ending in endings], now_ms)

    async def read(
        self, tenant: str, charges: Sequence[Charge], *, now_ms: int | None = None
    ) -> tuple[Reading, ...]:
        ((_, readings),) = await self._run(
            [_Step("read", Claim("", tenant, tuple(charges)))], now_ms
        )
        return readings

    async def seed(self, tenant: str, charge: Charge, *, now_ms: int | None = None) -> None:
        await self._run([_Step("seed", Claim("", tenant, (charge,)))], now_ms)

    async def close(self) -> None:
        await self._pool.disconnect()

    async def _run(
        self, steps: Sequence[_Step], now_ms: int | None
    ) -> list[tuple[bool, tuple[Reading, ...]]]:
        """All steps at once; they concern one tenant."""
        keys, arguments = list[str](), list[str | int](["" if now_ms is None else now_ms])
        for step in steps:
            keys += step.keys()
            arguments += step.arguments()
        return [_parsed(answer) for answer in await self._evaluate(keys, arguments)]

    async def _evaluate(self, keys: list[str], arguments: list[str | int]) -> list[list[int]]:
        answers: list[list[int]]
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                try:
                    answers = await self._redis.evalsha(SHA, len(keys), *keys, *arguments)
                except NoScriptError:
                    answers = await self._redis.eval(SCRIPT, len(keys), *keys, *arguments)
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error
        return answers


def _step_of(ending: Ending) -> _Step:
    operation: Operation = "settle" if ending.is_final else "release"
    return _Step(operation, ending.claim, actual=ending.actual)


def _parsed(answer: list[int]) -> tuple[bool, tuple[Reading, ...]]:
    done, *numbers = answer
    readings = tuple(
        Reading(used, reset, None if wait < 0 else wait, is_new == 1, held)
        for used, reset, wait, is_new, held in zip(*[iter(numbers)] * 5, strict=True)
    )
    return done == 1, readings
