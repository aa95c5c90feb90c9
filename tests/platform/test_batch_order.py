"""Whose lines start, and when: pauses and ends, suspended tenants, limits, windows and shares."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import pairwise

import pytest
from fastapi import FastAPI
from tests.held_engine import HeldEngine
from tests.platform.batch_stand import (
    TICK_S,
    idle_queue,
    jsonl,
    line,
    no_room,
    ready,
    results,
    run,
    submit,
    until_final,
    until_in_progress,
)
from tests.platform_stand import (
    BASE,
    Seeded,
    Served,
    letter_engine,
    listening,
    usage_of,
)
from tests.until import until

from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.batches.capacity import LEAST_URGENT
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.tenants.service import TenantService


@pytest.fixture
def app(make_app: Callable[..., FastAPI]) -> FastAPI:
    return make_app(batch_tick_s=TICK_S)


async def tenant_of(served: Served) -> str:
    return (await served.app.state.authenticator.authenticate(served.keys.acme)).tenant_id


async def test_a_paused_batch_waits_until_it_is_resumed(served: Served) -> None:
    no_room(served)
    made = await submit(served.client(), jsonl(line("a")))
    await served.app.state.batches.pause(made.id)
    served.engine.spare = 1.0
    await asyncio.sleep(5 * TICK_S)
    assert served.engine.requests == []
    (progress,) = await served.app.state.batches.progress()
    assert progress.is_paused
    await served.app.state.batches.resume(made.id)
    assert (await until_final(served.client(), made.id)).request_counts.completed == 1


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("how", ["pause", "cancel", "suspend"])
async def test_no_line_starts_once_its_batch_may_not_run(
    make_app: Callable[..., FastAPI], keys: Seeded, how: str, is_told: bool
) -> None:
    """Also none of those that lie at hand; lines at work end."""
    engine = HeldEngine()
    app = make_app(engine=engine, batch_concurrency=4)
    async with listening(app) as base_url, AsyncExitStack() as stack:
        served = Served(app, engine, base_url, keys, stack)
        made = await submit(served.client(), jsonl(*(line(str(i)) for i in range(40))))

        async def num_claimed() -> int:
            async with app.state.database.reading() as session:
                batch = await BatchRepository(session).any_of(made.id)
            assert batch is not None
            return batch.running

        async def are_at_hand() -> bool:
            return engine.num_running == 4 and await num_claimed() == 8

        async def are_given_back() -> bool:
            return await num_claimed() <= 4

        await until(are_at_hand)
        if not is_told:  # as by another process
            app.state.batches._bell = None
        if how == "pause":
            await app.state.batches.pause(made.id)
        elif how == "cancel":
            await served.client().batches.cancel(made.id)
        else:
            await app.state.tenants.move(COMMAND_LINE, await tenant_of(served), "suspended")
        await until(are_given_back)
        engine.let_go()
        await until(lambda: engine.num_running == 0)
        await asyncio.sleep(5 * TICK_S)
        assert len(engine.requests) == 4
        if how == "cancel":
            counts = (await until_final(served.client(), made.id)).request_counts
            assert (counts.completed, counts.failed) == (4, 36)


async def test_a_cancelled_job_ends_though_the_engine_has_no_room_for_its_lines(
    served: Served,
) -> None:
    client, jobs = served.client(), served.app.state.jobs
    batch_id = await ready(served, 3)
    jobs._ready.extend(await idle_queue(served).claim(jobs._owner, 3))
    await client.batches.cancel(batch_id)
    counts = (await until_final(client, batch_id)).request_counts
    assert counts.model_dump() == {"total": 3, "completed": 0, "failed": 3}
    assert served.engine.requests == []


async def test_a_suspended_tenants_batch_waits_until_it_is_active_again(served: Served) -> None:
    tenants = TenantService(served.app.state.database, SystemClock())
    tenant = await tenant_of(served)
    made = await ready(served, 3)
    await tenants.move(COMMAND_LINE, tenant, "suspended")
    served.engine.spare = 1.0
    served.app.state.jobs.ring()
    await asyncio.sleep(5 * TICK_S)
    assert served.engine.requests == []
    await tenants.move(COMMAND_LINE, tenant, "active")

    async def are_completed() -> bool:
        (progress,) = await served.app.state.batches.progress(tenant)
        return bool(progress.completed == 3)

    await until(are_completed)
    assert made == served.engine.requests[0].job_id


async def test_enqueued_tokens_are_limited_until_lines_are_done(served: Served) -> None:
    client, tenant = served.client(), await tenant_of(served)
    limits = LimitService(served.app.state.database, SystemClock())
    subject = Subject(tenant, "tenant", tenant)
    content = jsonl(*(line(str(i), text="x" * 40) for i in range(10)))  # 11 tokens each
    await limits.set(subject, "enqueued_batch_tokens", 150, strict=False)
    no_room(served)
    first = await submit(client, content)
    second = await run(client, content)
    assert second.errors is not None
    assert [e.code for e in second.errors.data or []] == ["token_limit_exceeded"]
    served.engine.spare = 1.0
    await until_final(client, first.id)
    assert (await run(client, content)).status == "completed"


async def test_live_rates_do_not_bind_lines_but_budgets_do(served: Served) -> None:
    client, tenant = served.client(), await tenant_of(served)
    limits = LimitService(served.app.state.database, SystemClock())
    subject = Subject(tenant, "tenant", tenant)
    await limits.set(subject, "requests_per_minute", 1, strict=False)
    batch = await run(client, jsonl(*(line(str(i)) for i in range(5))))
    assert batch.request_counts.completed == 5
    await limits.set(subject, "tokens_per_month", 1, strict=False)
    await asyncio.sleep(1.1)  # limits are read once a second
    batch = await run(client, jsonl(line("a")))
    errors = await results(client, batch.error_file_id)
    assert errors["a"]["response"]["status_code"] == 429
    assert errors["a"]["response"]["body"]["error"]["code"] == "insufficient_quota"


async def test_a_job_that_would_miss_its_window_is_promoted_and_billed_as_a_batch(
    served: Served,
) -> None:
    batch_id = await ready(served, 3)
    async with served.app.state.database.unit_of_work() as session:
        batch = await BatchRepository(session).any_of(batch_id)
        assert batch is not None
        assert batch.in_progress_at is not None
        batch.created_at -= timedelta(hours=23)  # and nothing was done yet
        batch.expires_at -= timedelta(hours=23)
    served.app.state.jobs.ring()  # nothing is spare: only an urgent job gets on
    await until(lambda: len(served.engine.requests) >= LEAST_URGENT)
    assert {request.tier for request in served.engine.requests} == {"standard"}
    served.engine.spare = 1.0
    final = await until_final(served.client(), batch_id)
    assert final.request_counts.completed == 3
    assert {event.tier for event in await usage_of(served.app)} == {"batch"}


async def test_tenants_share_the_room(make_app: Callable[..., FastAPI], keys: Seeded) -> None:
    """The one who comes second does not wait for the first one's whole batch."""
    engine = letter_engine(step_s=0.005)
    app = make_app(engine=engine, batch_concurrency=4, batch_tick_s=TICK_S)
    async with listening(app) as base_url, AsyncExitStack() as stack:
        served = Served(app, engine, base_url, keys, stack)
        await ready(served, 100)
        theirs = served.client(keys.globex)
        second = await submit(theirs, jsonl(*(line(str(i)) for i in range(20))))
        await until_in_progress(theirs, second.id)
        engine.spare = 1.0
        await until_final(theirs, second.id)
    tenants = [request.tenant for request in engine.requests]
    assert len(set(tenants[:10])) == 2
    (their_tenant,) = {request.tenant for request in engine.requests if request.job_id == second.id}
    assert max(i for i, tenant in enumerate(tenants) if tenant == their_tenant) < 60


async def test_lines_of_one_adapter_run_together(
    make_app: Callable[..., FastAPI], keys: Seeded
) -> None:
    engine = letter_engine(step_s=0.001)
    app = make_app(engine=engine, batch_concurrency=1, batch_tick_s=TICK_S)
    async with listening(app) as base_url, AsyncExitStack() as stack:
        served = Served(app, engine, base_url, keys, stack)
        models = [BASE, "support", "acme-only"] * 4
        content = jsonl(*(line(str(i), model) for i, model in enumerate(models)))
        await run(served.client(), content)
    adapters = [request.adapter for request in engine.requests]
    changes = sum(a != b for a, b in pairwise(adapters))
    assert changes == 2
