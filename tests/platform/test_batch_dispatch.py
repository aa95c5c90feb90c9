"""The queue of lines on both databases: claims, fences, retries, two dispatchers, lost processes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI, ConflictError
from tests.held_engine import HeldEngine
from tests.platform.batch_stand import jsonl, line, results, run, submit, until_final
from tests.platform_stand import (
    BASE,
    Seeded,
    Served,
    letter_engine,
    listening,
    seed,
    usage_of,
)
from tests.until import until

from loraplex_engine.fake import FakeEngine
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.app import create_app
from loraplex_platform.batches import closing
from loraplex_platform.batches.capacity import LEAST_URGENT
from loraplex_platform.batches.closing import LeaseLost
from loraplex_platform.batches.outcomes import MAX_ATTEMPTS, Failed, Retry
from loraplex_platform.batches.queue import Ended, LineQueue, Work
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.config import Settings
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.openai.served_model import ServedModel
from loraplex_platform.tenants.service import TenantService

LEASE_S = 60.0
TICK_S = 0.1


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def home(request: pytest.FixtureRequest, settings: Settings) -> tuple[Settings, Seeded]:
    """Settings of a fast dispatcher over a seeded database of each kind."""
    fast = replace(settings, batch_lease_s=LEASE_S, batch_tick_s=TICK_S, batch_concurrency=8)
    if request.param == "postgres":
        fast = replace(fast, database_url=request.getfixturevalue("migrated_postgres_url"))
    return fast, await seed(fast)


@asynccontextmanager
async def serving(
    home: tuple[Settings, Seeded], model: ServedModel, engine: FakeEngine | None = None
) -> AsyncIterator[Served]:
    engine = engine or letter_engine()
    app = create_app(home[0], engine, model)
    async with listening(app) as base_url, AsyncExitStack() as stack:
        yield Served(app, engine, base_url, home[1], stack)


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


async def test_two_dispatchers_share_a_batch_and_run_each_line_once(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    engine = letter_engine(step_s=0.002)
    async with serving(home, model, engine) as one, serving(home, model, engine):
        content = jsonl(*(line(str(i)) for i in range(120)))
        batch = await run(one.client(), content)
        assert batch.request_counts.completed == 120
        assert len(await results(one.client(), batch.output_file_id)) == 120
        assert len(engine.requests) == 120
        assert len(await usage_of(one.app)) == 120


async def test_claims_of_two_owners_are_disjoint(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    async with serving(home, model) as served:
        await ready(served, 20)
        queue = idle_queue(served)
        claims = await asyncio.gather(*(queue.claim(f"owner{i}", 5) for i in range(5)))
        numbers = [work.claim.line_no for each in claims for work in each]
        assert len(numbers) == len(set(numbers))
        while more := await queue.claim("last", 5):
            numbers += [work.claim.line_no for work in more]
        assert sorted(numbers) == list(range(1, 21))


async def test_a_claim_that_was_taken_over_writes_nothing(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    async with serving(home, model) as served:
        await ready(served, 1)
        (late,) = await idle_queue(served, lease_s=0.1).claim("late", 1)
        queue, taken = idle_queue(served), list[Work]()

        async def is_taken_away() -> bool:  # by the app's dispatcher
            taken.extend(await queue.claim("second", 1))
            return bool(taken)

        await until(is_taken_away)
        (second,) = taken
        assert second.claim.epoch == late.claim.epoch + 1
        await queue.close([Ended(late.claim, Failed("req_late", 400, "{}"))])
        row = await row_of(served, late)
        assert (row.failed, row.running) == (0, 1)
        await queue.close([Ended(second.claim, Failed("req_second", 400, "{}"))])
        await queue.close([Ended(second.claim, Failed("req_second", 400, "{}"))])
        row = await row_of(served, late)
        assert (row.failed, row.running) == (1, 0)


async def row_of(served: Served, work: Work) -> Any:
    async with served.app.state.database.reading() as session:
        return await BatchRepository(session).any_of(work.claim.batch_id)


async def test_a_clock_that_jumps_ahead_costs_a_second_try_but_no_second_result(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    async with serving(home, model) as served:
        batch_id = await ready(served, 3)
        slow = idle_queue(served)
        claimed = await slow.claim("slow", 3)
        ahead = ManualClock(SystemClock().now() + timedelta(hours=1))
        assert await idle_queue(served, ahead).recover() == 3
        await slow.close([Ended(work.claim, Failed("req_slow", 400, "{}")) for work in claimed])
        served.engine.spare = 1.0
        batch = await until_final(served.client(), batch_id)
        assert batch.request_counts.model_dump() == {"total": 3, "completed": 3, "failed": 0}


async def test_a_line_that_costs_its_process_every_time_is_set_aside(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    async with serving(home, model) as served:
        batch_id = await ready(served, 1)
        clock = ManualClock(SystemClock().now())
        queue = idle_queue(served, clock)
        for _ in range(MAX_ATTEMPTS):
            assert len(await queue.claim("doomed", 1)) == 1
            clock.advance(LEASE_S + 0.1)
            assert await queue.recover() == 1
        batch = await until_final(served.client(), batch_id)
        assert batch.request_counts.failed == 1
        errors = await results(served.client(), batch.error_file_id)
        assert errors["0"]["error"]["code"] == "too_many_attempts"
        assert errors["0"]["response"] is None


async def test_a_line_given_back_has_lost_no_try(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    async with serving(home, model) as served:
        await ready(served, 1)
        queue = idle_queue(served)
        for _ in range(MAX_ATTEMPTS + 1):
            (work,) = await queue.claim("polite", 1)
            assert work.claim.attempts == 1
            await queue.close([Ended(work.claim, Retry("stopped", is_counted=False, after_s=0))])


async def test_an_engine_that_dies_costs_time_and_no_line(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    engine = letter_engine(step_s=0.002)
    engine.die_after, engine.restart_s = 20, 0.2
    fast = (replace(home[0], engine_wait_s=0.05), home[1])
    async with serving(fast, model, engine) as served:
        batch = await run(
            served.client(),
            jsonl(*(line(str(i)) for i in range(30))),
        )
        assert batch.request_counts.model_dump() == {"total": 30, "completed": 30, "failed": 0}
        events = await usage_of(served.app)
        assert len(events) == 30
        assert batch.model_dump()["usage"]["output_tokens"] == sum(
            e.completion_tokens for e in events
        )


async def test_a_stopped_dispatcher_gives_its_lines_to_the_next(
    home: tuple[Settings, Seeded], model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex_platform.app.BATCH_GRACE_S", 0.05)
    slow = letter_engine(step_s=0.3)
    async with serving(home, model, slow) as served:
        content = jsonl(*(line(str(i), max_tokens=100) for i in range(6)))
        batch_id = (await submit(served.client(), content)).id
        await until(lambda: slow.num_running == 6)
    async with serving(home, model) as served:
        batch = await until_final(served.client(), batch_id)
        assert batch.request_counts.completed == 6


async def until_released(served: Served, batch_id: str) -> None:
    async def is_released() -> bool:
        async with served.app.state.database.reading() as session:
            row = await BatchRepository(session).any_of(batch_id)
        return row is not None and row.lease_until is None

    await until(is_released)


async def test_a_step_that_another_took_meanwhile_is_not_taken_again(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    """A dispatcher looks, another validates or closes the job, and only then the first begins."""
    async with serving(home, model) as served:
        batch_id = await ready(served, 3)  # validated
        await until_released(served, batch_id)
        running = await served.client().batches.retrieve(batch_id)
        await served.app.state.jobs._step(batch_id)
        assert await served.client().batches.retrieve(batch_id) == running
        served.engine.spare = 1.0
        closed = await until_final(served.client(), batch_id)
        await until_released(served, batch_id)
        await served.app.state.jobs._step(batch_id)
        assert await served.client().batches.retrieve(batch_id) == closed
        assert len(await results(served.client(), closed.output_file_id)) == 3


async def test_who_lost_the_lease_removes_no_lines_and_gives_none_up(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    async with serving(home, model) as served:
        batch_id = await ready(served, 3)
        dispatcher = served.app.state.jobs
        async with served.app.state.database.reading() as session:
            late = await BatchRepository(session).any_of(batch_id)
        assert late is not None
        late.epoch -= 1
        late.status = "validating"
        await dispatcher._intake.validate(late)
        late.status = "in_progress"
        with pytest.raises(LeaseLost):
            await dispatcher._closing.close(late)
        served.engine.spare = 1.0
        batch = await until_final(served.client(), batch_id)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 3


async def test_a_job_that_ends_while_it_is_cancelled_stays_ended(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    async with serving(home, model) as served:
        batch_id = await ready(served, 1)
        await until_released(served, batch_id)
        async with served.app.state.database.unit_of_work() as session:
            ended = await BatchRepository(session).any_of(batch_id)
            assert ended is not None
            ended.status = "completed"
            await session.flush()
            cancelling = asyncio.create_task(served.client().batches.cancel(batch_id))
            await asyncio.sleep(
                0.3
            )  # long enough to read; if it is not, nothing is seen and all is well
        with pytest.raises(ConflictError):
            await cancelling
        assert (await served.client().batches.retrieve(batch_id)).status == "completed"


async def test_a_batch_past_its_window_gives_what_it_has(
    home: tuple[Settings, Seeded], model: ServedModel
) -> None:
    async with serving(home, model) as served:
        batch_id = await ready(served, 3)
        queue = idle_queue(served)
        (work,) = await queue.claim("quick", 1)
        await queue.close([Ended(work.claim, Failed("req_1", 400, '{"error": {}}'))])
        async with served.app.state.database.unit_of_work() as session:
            row = await BatchRepository(session).any_of(batch_id)
            assert row is not None
            row.expires_at = SystemClock().now()
        batch = await until_final(served.client(), batch_id)
        assert batch.status == "expired"
        assert batch.expired_at is not None
        assert batch.request_counts.failed == 3
        errors = await results(served.client(), batch.error_file_id)
        codes = [error["error"] and error["error"]["code"] for error in errors.values()]
        assert sorted(map(str, codes)) == ["None", "batch_expired", "batch_expired"]


async def test_cancelled_lines_that_do_not_end_are_fenced_after_the_grace(
    home: tuple[Settings, Seeded], model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "GRACE", timedelta(0))
    async with serving(home, model) as served:
        batch_id = await ready(served, 2)
        queue = idle_queue(served)
        claimed = await queue.claim("slow", 1)
        await served.client().batches.cancel(batch_id)
        batch = await until_final(served.client(), batch_id)
        assert batch.request_counts.model_dump() == {"total": 2, "completed": 0, "failed": 2}
        await queue.close([Ended(claimed[0].claim, Failed("req_1", 400, "{}"))])
        assert await served.client().batches.retrieve(batch_id) == batch


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
