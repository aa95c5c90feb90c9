"""Both stores of the gate, and the words that their tests share."""

from collections.abc import AsyncIterator, Mapping

import pytest
from tests.services import RedisServer

from loraplex_platform.admission.limits import (
    BUDGET_PER_DAY,
    CONCURRENT_REQUESTS,
    QUEUED_REQUESTS,
    REQUESTS_PER_MINUTE,
    TOKENS_PER_DAY,
    TOKENS_PER_MINUTE,
    TOKENS_PER_MONTH,
    Claim,
    Limit,
    Need,
)
from loraplex_platform.admission.memory_store import MemoryStore
from loraplex_platform.admission.redis_store import RedisStore
from loraplex_platform.admission.store import LimitStore

NOON_MS = 1_782_043_200_000  # 2026-06-21 12:00 UTC
MINUTE_MS = 60_000
TENANT = "ten_a"


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[LimitStore]:
    """Each test runs on both stores; on Redis with a timeout that a busy machine keeps."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        shared = RedisStore(request.getfixturevalue("redis_url"), timeout_s=60)
        yield shared
        await shared.close()


def requests(value: int, subject: str = "key_1") -> Limit:
    return Limit(REQUESTS_PER_MINUTE, "key", subject, value)


def tokens(value: int) -> Limit:
    return Limit(TOKENS_PER_MINUTE, "tenant", TENANT, value)


def concurrent(value: int) -> Limit:
    return Limit(CONCURRENT_REQUESTS, "project", "proj_1", value)


def queued(value: int) -> Limit:
    return Limit(QUEUED_REQUESTS, "tenant", TENANT, value)


def daily(value: int) -> Limit:
    return Limit(TOKENS_PER_DAY, "project", "proj_1", value)


def monthly(value: int) -> Limit:
    return Limit(TOKENS_PER_MONTH, "tenant", TENANT, value)


def spending(nano: int) -> Limit:
    """A budget of the day."""
    return Limit(BUDGET_PER_DAY, "tenant", TENANT, nano, ends_ms=NOON_MS + 12 * 60 * MINUTE_MS)


def claim(id: str, *limits: Limit, tokens: int = 1, tenant: str = TENANT) -> Claim:
    """A request of so many tokens that meets these limits."""
    amounts: Mapping[str, int] = {"requests": 1, "running": 1, "queued": 1, "tokens": tokens}
    amounts = {**amounts, "spend": tokens}
    return Claim(id, tenant, Need(id, tenant, amounts, ttl_s=60).charges(limits))


def script_calls(server: RedisServer) -> int:
    """How often this Redis ran the limiter's script since it started."""
    lines = server.execute("INFO", "commandstats").decode().splitlines()
    found = [line for line in lines if line.startswith("cmdstat_evalsha:")]
    return int(found[0].split("calls=")[1].split(",")[0]) if found else 0
