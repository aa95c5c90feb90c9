"""The limiter's state in a Redis (6.2 or newer) that all API processes share: one script, one step."""

import asyncio
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from loraplex_platform.admission.limits import Charge, Claim, Outcome, Reading
from loraplex_platform.admission.store import StoreUnavailable

TIMEOUT_S = 0.1
SCRIPT = Path(__file__).with_name("limiter.lua").read_text()
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """One round trip a step; whatever goes wrong is StoreUnavailable after at most 100 ms."""

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

    async def reserve(self, claim: Claim, ttl_s: float, *, now_ms: int | None = None) -> Outcome:
        done, readings = await self._step("reserve", claim, {}, ttl_s, now_ms)
        return Outcome(done, readings)

    async def settle(
        self, claim: Claim, actual: Mapping[str, int], *, now_ms: int | None = None
    ) -> bool:
        done, _ = await self._step("settle", claim, actual, 0, now_ms)
        return done

    async def release(self, claim: Claim, unit: str, *, now_ms: int | None = None) -> None:
        leases = Claim(claim.id, claim.tenant, claim.leases_on(unit))
        await self._step("release", leases, {}, 0, now_ms)

    async def read(
        self, tenant: str, charges: Sequence[Charge], *, now_ms: int | None = None
    ) -> tuple[Reading, ...]:
        _, readings = await self._step("read", Claim("", tenant, tuple(charges)), {}, 0, now_ms)
        return readings

    async def seed(self, tenant: str, charge: Charge, *, now_ms: int | None = None) -> None:
        await self._step("seed", Claim("", tenant, (charge,)), {}, 0, now_ms)

    async def close(self) -> None:
        await self._pool.disconnect()

    async def _step(
        self,
        operation: str,
        claim: Claim,
        actual: Mapping[str, int],
        ttl_s: float,
        now_ms: int | None,
    ) -> tuple[bool, tuple[Reading, ...]]:
        prefix = f"lpx:{{{claim.tenant}}}:"  # one hash slot a tenant, so that a cluster serves too
        keys = [f"{prefix}claim:{claim.id}"]
        arguments: list[str | int] = [operation, "" if now_ms is None else now_ms]
        arguments += [claim.id, math.ceil(ttl_s * 1000)]
        for limit, amount in claim.charges:
            keys += [f"{prefix}{limit.key}", f"{prefix}{limit.key}:holds"]
            dimension = limit.dimension
            used = actual.get(dimension.unit, amount)
            period = limit.ends_ms if dimension.kind == "window" else dimension.period_s * 1000
            arguments += [dimension.kind, limit.value, amount, used, period]
        done, *numbers = await self._run(keys, arguments)
        readings = tuple(
            Reading(used, reset, None if wait < 0 else wait, is_new == 1)
            for used, reset, wait, is_new in zip(*[iter(numbers)] * 4, strict=True)
        )
        return done == 1, readings

    async def _run(self, keys: list[str], arguments: list[str | int]) -> list[int]:
        numbers: list[int]
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                try:
                    numbers = await self._redis.evalsha(SHA, len(keys), *keys, *arguments)
                except NoScriptError:
                    numbers = await self._redis.eval(SCRIPT, len(keys), *keys, *arguments)
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error
        return numbers
