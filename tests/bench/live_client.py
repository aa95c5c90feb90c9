"""One server and the official client: streams whose tokens are timed."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from openai import AsyncOpenAI
from random_adapters import make_adapters
from server_system import LoraplexServer
from workload import Request

from loraplex_engine.importer import DEMO_MODEL, import_model

CACHE = Path.home() / ".cache" / "loraplex"
ServiceTier = Literal["default", "flex", "priority"]


@dataclass(slots=True)
class Stream:
    """One answer as its client saw it; seconds on this process's clock."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.sent_s

    @property
    def gaps_s(self) -> Iterator[float]:
        return (b - a for a, b in zip(self.token_s, self.token_s[1:], strict=False))


@contextmanager
def serving(adapters: Path) -> Iterator[LoraplexServer]:
    """`loraplex serve` with SmolLM2 and the sixteen random adapters."""
    model_folder = import_model(DEMO_MODEL, CACHE)
    make_adapters(model_folder, adapters)
    server = LoraplexServer(model_folder, adapters)
    try:
        yield server
    finally:
        server.close()


@asynccontextmanager
async def client_of(server: LoraplexServer, key: str | None = None) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=key or server.key, max_retries=0, timeout=3600
    ) as client:
        yield client


async def stream(
    client: AsyncOpenAI,
    server: LoraplexServer,
    request: Request,
    tier: ServiceTier,
    begun: list[Stream] | None = None,
) -> Stream:
    seen = Stream(time.perf_counter())
    if begun is not None:
        begun.append(seen)
    events = await client.completions.create(
        model=request.adapter or server.base_model,
        prompt=request.prompt_ids,
        max_tokens=request.max_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True, "service_tier": tier},
    )
    async for event in events:
        for choice in event.choices:
            new = (choice.model_extra or {}).get("token_ids", [])
            seen.token_s += [time.perf_counter()] * len(new)
    return seen


async def keep_busy(
    client: AsyncOpenAI,
    server: LoraplexServer,
    requests: list[Request],
    tier: ServiceTier,
    count: int,
    begun: list[Stream],
) -> None:
    """`count` requests in flight until cancelled or one fails; each is in `begun` from its start."""
    numbers = iter(range(10**9))

    async def one_after_the_other() -> None:
        while True:
            number = next(numbers)
            request = requests[number % len(requests)]
            fresh = [2 + number % 40_000, *request.prompt_ids[1:]]  # in no prefix cache yet
            sent = request._replace(prompt_ids=fresh)
            await stream(client, server, sent, tier, begun)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one_after_the_other())
