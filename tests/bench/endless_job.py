"""A Batch API job that is longer than anybody waits, and the rate at which it gets on."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from openai import AsyncOpenAI
from server_system import LoraplexServer
from workload import Request

LINES = 5000
WARM_LINES = 10  # done before anything is measured
POLL_S = 0.5


@dataclass
class Window:
    """What a job did in some stretches of time; a stretch starts and ends when lines do."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class EndlessJob:
    """Runs until its context ends."""

    client: AsyncOpenAI
    batch_id: str

    @asynccontextmanager
    async def watched(self, window: Window) -> AsyncIterator[None]:
        """Adds to the window what happens meanwhile."""
        first, started_s = await self._tokens(), time.perf_counter()
        try:
            yield
        finally:
            window.tokens += await self._tokens() - first
            window.seconds += time.perf_counter() - started_s

    async def warm_up(self) -> None:
        while await self._num_done() < WARM_LINES:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    async def _tokens(self) -> int:
        usage = (await self.client.batches.retrieve(self.batch_id)).usage
        assert usage is not None
        return usage.total_tokens

    async def _num_done(self) -> int:
        batch = await self.client.batches.retrieve(self.batch_id)
        if batch.errors is not None:
            raise SystemExit(f"the job is refused: {batch.errors}")
        assert batch.request_counts is not None
        if batch.request_counts.failed:
            raise SystemExit("lines of the job fail")
        return batch.request_counts.completed


@asynccontextmanager
async def endless_job(
    client: AsyncOpenAI, server: LoraplexServer, requests: list[Request], number: int
) -> AsyncIterator[EndlessJob]:
    """Each job has prompts of its own, which are in no prefix cache yet."""
    content = "\n".join(
        json.dumps(_line(index, number, requests[index % len(requests)], server.base_model))
        for index in range(LINES)
    )
    file = await client.files.create(
        file=("endless.jsonl", io.BytesIO(content.encode())), purpose="batch"
    )
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    try:
        yield EndlessJob(client, batch.id)
    finally:
        await client.batches.cancel(batch.id)
        while (await client.batches.retrieve(batch.id)).status != "cancelled":  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


def _line(index: int, number: int, request: Request, base_model: str) -> dict[str, object]:
    fresh = 1000 + (LINES * number + index) % 40_000
    return {
        "custom_id": str(index),
        "method": "POST",
        "url": "/v1/completions",
        "body": {
            "model": request.adapter or base_model,
            "prompt": [fresh, *request.prompt_ids[1:]],
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        },
    }
