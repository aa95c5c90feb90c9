"""What tests of batch jobs share: input files, and waiting for jobs."""

import asyncio
import io
import json
import time
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch
from tests.platform_stand import BASE

URL = "/v1/chat/completions"
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
