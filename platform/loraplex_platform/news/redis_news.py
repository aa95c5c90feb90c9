"""Word of changes to all processes, through Redis's publish and subscribe."""

import asyncio
import json

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from loraplex_platform.kit.news import News

CHANNEL = "lpx:news"
RECONNECT_S = 0.5
SILENCE_S = 5.0  # then the connection is tried

log = structlog.get_logger(__name__)


class RedisNews(News):
    """Best effort: who misses a message reads again when what it remembers is old."""

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._redis = Redis.from_url(
            url,
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=SILENCE_S,
            retry=Retry(NoBackoff(), 0),
        )
        self.is_listening = asyncio.Event()

    async def tell(self, tenants: frozenset[str | None]) -> None:
        """Never waits longer than the timeout, and never fails."""
        self.hear(tenants)
        message = json.dumps(sorted(tenants, key=str))
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._redis.publish(CHANNEL, message)
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            log.warning("news_not_told", error=type(error).__name__)

    async def run(self) -> None:
        while True:
            try:
                await self._listen()
            except (RedisError, OSError) as error:
                log.warning("news_not_heard", error=type(error).__name__)
            finally:
                self.is_listening.clear()
            await asyncio.sleep(RECONNECT_S)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _listen(self) -> None:
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(CHANNEL)
            while True:
                message = await pubsub.get_message(timeout=SILENCE_S)
                if message is None:
                    await pubsub.ping()
                elif message["type"] == "subscribe":
                    self.is_listening.set()
                elif message["type"] == "message":
                    self.hear(frozenset(json.loads(message["data"])))
