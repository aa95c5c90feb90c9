"""The queue of lines on both databases: claims, fences, retries, two dispatchers, lost processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from openai import ConflictError
from tests.platform.batch_stand import (
    LEASE_S,
    TICK_S,
    idle_queue,
    jsonl,
    line,
    ready,
    results,
    run,
    submit,
    until_final,
)
from tests.platform_stand import (
    Seeded,
    Served,
    letter_engine,
    listening,
    seed,
    usage_of,
)
from tests.until import until

from loraplex_engine.fake import FakeEngine
from loraplex_platform.app import create_app
from loraplex_platform.batches import closing
from loraplex_platform.batches.closing import LeaseLost
from loraplex_platform.batches.outcomes import MAX_ATTEMPTS, Failed, Retry
from loraplex_platform.batches.queue import Ended, Work
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.config import Settings
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.openai.served_model import ServedModel


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
