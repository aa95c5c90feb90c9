"""What tests of batch jobs share: input files, waiting for jobs, and a dispatcher that the test plays."""

import asyncio
import io
import json
import time
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch
from tests.platform_stand import BASE, Served
from tests.until import until

from loraplex_platform.batches.queue import LineQueue
from loraplex_platform.kit.clock import ManualClock, SystemClock

URL = "/v1/chat/completions"
LEASE_S, TICK_S = 60.0, 0.1
FINAL = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, model: str = BASE, text: str = "hi", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": URL,
        "body": {"model": model, "messages": messages, "max_tokens": 3, **body},
    }


def jsonl(*lines: dict[str, Any] | str) -> bytes:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    return "".join(f"{text}\n" for text in texts).encode()


async def submit(client: AsyncOpenAI, content: bytes, **options: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
    order = {"endpoint": URL, "completion_window": "24h"} | options
    return await client.batches.create(input_file_id=file.id, **order)


async def until_final(client: AsyncOpenAI, batch_id: str, within_s: float = 60) -> Batch:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        batch = await client.batches.retrieve(batch_id)
        if batch.status in FINAL:
            return batch
        await asyncio.sleep(0.03)
    raise TimeoutError(batch)


async def run(client: AsyncOpenAI, content: bytes, **options: Any) -> Batch:
    return await until_final(client, (await submit(client, content, **options)).id)


async def results(client: AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """A result file's lines by custom_id, each of which is there once."""
    if file_id is None:
        return {}
    lines = [json.loads(text) for text in (await client.files.content(file_id)).iter_lines()]
    found = {each["custom_id"]: each for each in lines}
    assert len(found) == len(lines)
    return found


def idle_queue(
    served: Served, clock: ManualClock | None = None, lease_s: float = LEASE_S
) -> LineQueue:
    """A queue over the same database, for a dispatcher that the test plays."""
    queue: LineQueue = served.app.state.jobs._queue
    return LineQueue(queue._database, queue._files, queue._books, clock or SystemClock(), lease_s)


def no_room(served: Served) -> None:
    """The app's own dispatcher goes on validating and closing, but starts no line."""
    served.engine.spare = 0.0


async def ready(served: Served, count: int) -> str:
    """A batch of so many lines that nobody runs."""
    no_room(served)
    batch = await submit(served.client(), jsonl(*(line(str(i)) for i in range(count))))
    await until_in_progress(served.client(), batch.id)
    return batch.id


async def until_in_progress(client: AsyncOpenAI, batch_id: str) -> None:
    async def is_in_progress() -> bool:
        return (await client.batches.retrieve(batch_id)).status == "in_progress"

    await until(is_in_progress)
