"""The Batch API through the official client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fastapi import FastAPI
from openai import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    RateLimitError,
    UnprocessableEntityError,
)
from openai.types import Batch
from tests.platform.batch_stand import URL, jsonl, line, results, run, submit, until_final
from tests.platform_stand import BASE, Seeded, Served, letter_engine, listening, usage_of
from tests.until import until

from loraplex_platform.batches import service


@pytest.fixture
def app(make_app: Callable[..., FastAPI]) -> FastAPI:
    return make_app(batch_tick_s=0.1)


async def test_a_batch_of_several_models_is_answered_line_by_line(served: Served) -> None:
    client = served.client()
    names = {"a": BASE, "b": "support", "c": "acme-only"}
    content = jsonl(*(line(name, model, text=name) for name, model in names.items()))
    made = await submit(client, content, metadata={"job": "nightly"})
    assert (made.object, made.endpoint) == ("batch", "/v1/chat/completions")
    assert made.metadata == {"job": "nightly"}
    batch = await until_final(client, made.id)
    assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None)
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 3, "failed": 0}
    output = await results(client, batch.output_file_id)
    assert {name: out["response"]["body"]["model"] for name, out in output.items()} == names
    assert all(out["response"]["status_code"] == 200 for out in output.values())
    assert all(out["error"] is None for out in output.values())
    assert {r.tier for r in served.engine.requests} == {"batch"}
    assert {r.job_id for r in served.engine.requests} == {batch.id}


async def test_timestamps_usage_and_model_tell_what_happened(served: Served) -> None:
    client = served.client()
    batch = await run(client, jsonl(line("a"), line("b", text="hello there")))
    dump = batch.model_dump()
    assert dump["model"] == BASE
    order = ["created_at", "in_progress_at", "finalizing_at", "completed_at"]
    assert [dump[name] for name in order] == sorted(dump[name] for name in order)
    assert all(dump[f"{name}_at"] is None for name in ("failed", "expired", "cancelled"))
    assert dump["expires_at"] == dump["created_at"] + 86400
    output = await results(client, batch.output_file_id)
    used = [out["response"]["body"]["usage"] for out in output.values()]
    assert dump["usage"]["input_tokens"] == sum(u["prompt_tokens"] for u in used)
    assert dump["usage"]["output_tokens"] == sum(u["completion_tokens"] for u in used) == 6


async def test_each_line_is_billed_once_in_the_batch_tier(served: Served) -> None:
    batch = await run(served.client(), jsonl(line("a"), line("b"), line("c")))
    events = await usage_of(served.app)
    assert [e.request_id for e in events] == [f"batch:{batch.id}:{n}" for n in (1, 2, 3)]
    assert {(e.tier, e.job_id, e.completion_tokens) for e in events} == {("batch", batch.id, 3)}


async def test_whoever_only_looks_pays_nothing(served: Served) -> None:
    client = served.client()
    batch = await run(client, jsonl(line("a"), line("b")))
    assert batch.output_file_id is not None
    await client.completions.create(model=BASE, prompt="hi", max_tokens=2)
    paid = [event.request_id for event in await usage_of(served.app)]
    for _ in range(20):
        await client.batches.retrieve(batch.id)
        await client.batches.list()
        await client.files.content(batch.output_file_id)
        await client.models.list()
    assert [event.request_id for event in await usage_of(served.app)] == paid
    assert len(paid) == 3


async def test_a_line_that_fails_is_in_the_error_file_and_not_billed(served: Served) -> None:
    client = served.client()
    wrong = line("bad", temperature=9)
    batch = await run(client, jsonl(line("good"), wrong, line("vast", max_tokens=10**6)))
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 1, "failed": 2}
    assert list(await results(client, batch.output_file_id)) == ["good"]
    errors = await results(client, batch.error_file_id)
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert errors["vast"]["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert len(await usage_of(served.app)) == 1


async def test_a_batch_whose_lines_all_fail_is_completed_without_output(served: Served) -> None:
    batch = await run(served.client(), jsonl(line("a", n=0), line("b", service_tier="priority")))
    assert (batch.status, batch.output_file_id, batch.errors) == ("completed", None, None)
    assert batch.request_counts.failed == 2
    errors = await results(served.client(), batch.error_file_id)
    assert errors["b"]["response"]["body"]["error"]["param"] == "service_tier"


async def test_plain_completions_run_in_batches_too(served: Served) -> None:
    client, url = served.client(), "/v1/completions"
    body = {"model": BASE, "prompt": "once", "max_tokens": 2}
    content = jsonl({"custom_id": "a", "method": "POST", "url": url, "body": body})
    batch = await run(client, content, endpoint=url)
    output = await results(client, batch.output_file_id)
    assert output["a"]["response"]["body"]["object"] == "text_completion"


async def test_the_client_pages_through_all_batches_newest_first(served: Served) -> None:
    client = served.client()
    made = [(await submit(client, jsonl(line("a")))).id for _ in range(5)]
    assert [b.id async for b in client.batches.list(limit=2)] == made[::-1]
    assert [b.id async for b in served.client(served.keys.globex).batches.list()] == []


async def test_another_tenants_batch_and_file_do_not_exist(served: Served) -> None:
    batch = await submit(served.client(), jsonl(line("a")))
    theirs = served.client(served.keys.globex)
    for call in (theirs.batches.retrieve, theirs.batches.cancel):
        with pytest.raises(NotFoundError, match="No batch found"):
            await call(batch.id)
    with pytest.raises(NotFoundError) as caught:
        await theirs.batches.create(
            input_file_id=batch.input_file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
    assert caught.value.param == "input_file_id"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k"),
    ],
)
async def test_a_wrong_order_is_refused_at_once(
    served: Served, options: dict[str, object], param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await submit(served.client(), jsonl(line("a")), **options)
    assert caught.value.param == param


async def test_a_file_of_another_purpose_is_no_input(served: Served) -> None:
    client = served.client()
    file = await client.files.create(file=("a.jsonl", jsonl(line("a"))), purpose="user_data")
    with pytest.raises(BadRequestError) as caught:
        await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert (caught.value.param, caught.value.code) == ("input_file_id", "invalid_purpose")


async def test_an_order_repeated_with_its_key_is_one_batch(served: Served) -> None:
    client = served.client()
    file = await client.files.create(file=("a.jsonl", jsonl(line("a"))), purpose="batch")

    async def order(key: str, **change: Any) -> Batch:
        given: dict[str, Any] = {"endpoint": URL, "completion_window": "24h", **change}
        return await client.batches.create(
            input_file_id=file.id, extra_headers={"Idempotency-Key": key}, **given
        )

    twice = await asyncio.gather(order("k1"), order("k1"))
    again = await order("k1")
    assert {batch.id for batch in twice} == {again.id}
    assert (await order("k2")).id != again.id
    with pytest.raises(UnprocessableEntityError) as caught:
        await order("k1", metadata={"other": "order"})
    assert caught.value.code == "idempotency_key_reused"


async def test_too_many_orders_in_an_hour_are_told_when_to_come_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CREATES_PER_HOUR", 2)
    client = served.client()
    for _ in range(2):
        await submit(client, jsonl(line("a")))
    with pytest.raises(RateLimitError) as caught:
        await submit(client, jsonl(line("a")))
    assert caught.value.type == "batches"
    assert 3500 < int(caught.value.response.headers["retry-after"]) <= 3600
    await submit(served.client(served.keys.globex), jsonl(line("a")))


async def test_the_input_file_may_be_deleted_while_its_batch_runs(served: Served) -> None:
    client = served.client()
    served.engine.step_s = 0.05
    made = await submit(client, jsonl(line("a"), line("b")))
    await client.files.delete(made.input_file_id)
    batch = await until_final(client, made.id)
    assert batch.request_counts.completed == 2


@pytest.fixture
async def slow(make_app: Callable[..., FastAPI], keys: Seeded) -> AsyncIterator[Served]:
    """An API whose dispatcher runs one line at a time, each for half a second."""
    engine = letter_engine(step_s=0.15)
    app = make_app(engine=engine, batch_concurrency=1, batch_tick_s=0.1)
    async with listening(app) as base_url, AsyncExitStack() as stack:
        yield Served(app, engine, base_url, keys, stack)


async def test_a_cancelled_batch_gives_what_it_has(slow: Served) -> None:
    client = slow.client()
    made = await submit(client, jsonl(*(line(str(i)) for i in range(60))))
    await until(lambda: slow.engine.num_running > 0)
    cancelling = await client.batches.cancel(made.id)
    assert cancelling.status == "cancelling"
    assert (await client.batches.cancel(made.id)).status in ("cancelling", "cancelled")
    batch = await until_final(client, made.id)
    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None
    done = await results(client, batch.output_file_id)
    undone = await results(client, batch.error_file_id)
    assert len(done) >= 1
    assert {*done, *undone} == {str(i) for i in range(60)}
    assert {u["error"]["code"] for u in undone.values()} == {"batch_cancelled"}
    assert batch.request_counts.completed == len(done) == len(await usage_of(slow.app))
    assert batch.request_counts.failed == len(undone)


async def test_a_batch_that_is_over_cannot_be_cancelled(served: Served) -> None:
    batch = await run(served.client(), jsonl(line("a")))
    with pytest.raises(ConflictError) as caught:
        await served.client().batches.cancel(batch.id)
    assert caught.value.code == "batch_not_cancellable"
    assert caught.value.response.headers["x-should-retry"] == "false"
