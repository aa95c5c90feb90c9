"""Runs batch jobs in one process; any number of processes may do so at once."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from loraplex_platform.batches.capacity import Capacity
from loraplex_platform.batches.closing import Closing
from loraplex_platform.batches.intake import Intake
from loraplex_platform.batches.line_runner import LineRunner
from loraplex_platform.batches.models import Batch
from loraplex_platform.batches.outcomes import Retry
from loraplex_platform.batches.queue import Ended, LineQueue, Work, runnable
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.batches.shares import Candidate
from loraplex_platform.db.database import Database
from loraplex_platform.files.service import FileService
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.ids import new_id

log = structlog.get_logger(__name__)
POLL_S = 0.1  # how soon spare capacity is seen
LINGER_S = 0.2  # while lines run: a transaction costs more than a line
LOOK_S = 0.2  # how soon a job is seen to be paused or cancelled that nobody announced
AFTER_FAULT_S = 1.0
SWEEP_S = 60.0
STEPS_AT_ONCE = 4  # jobs that are validated or closed side by side
GIVEN_BACK = Retry("its dispatcher or its job was stopped", is_counted=False, after_s=0.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How a dispatcher works."""

    concurrency: int = 32  # lines at once in this process
    lease_s: float = 30.0  # after which another process may take a line over
    tick_s: float = 5.0  # how often it looks for work that nobody announced


class Dispatcher:
    """`ring` tells it that there is work; without that it finds out with the next tick."""

    def __init__(
        self,
        *,
        database: Database,
        queue: LineQueue,
        runner: LineRunner,
        intake: Intake,
        closing: Closing,
        files: FileService,
        capacity: Capacity,
        clock: Clock,
        pace: Pace,
    ) -> None:
        self._database = database
        self._queue = queue
        self._runner = runner
        self._intake = intake
        self._closing = closing
        self._files = files
        self._capacity = capacity
        self._clock = clock
        self._pace = pace
        self._owner = new_id("dispatcher")
        self._ready: deque[Work] = deque()  # claimed, not started
        self._looked_s = -math.inf  # when the jobs of those were last seen to go on
        self._running: dict[asyncio.Task[None], Work] = {}
        self._steps: dict[str, asyncio.Task[None]] = {}  # by job
        self._ended: asyncio.Queue[Ended] = asyncio.Queue()
        self._has_news = asyncio.Event()  # jobs are to be looked at
        self._wakes = asyncio.Event()  # lines may be started
        self._may_have_lines = False  # that nobody has claimed
        self._is_urgent = False  # some job would miss its window
        self._is_idle = asyncio.Event()  # no line runs
        self._is_idle.set()
        self._is_stopping = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._writer: asyncio.Task[None] | None = None

    def ring(self, batch_id: str | None = None) -> None:
        """Look for work now, whatever was announced, and at what is to be stopped."""
        self._has_news.set()
        self._looked_s = -math.inf
        self._look_for_lines()

    def start(self) -> None:
        self.ring()
        work = (self._keep_jobs, self._feed, self._sweep_files, self._keep_leases)
        self._loops = [asyncio.create_task(self._repeat(each)) for each in work]
        self._writer = asyncio.create_task(self._repeat(self._write))

    async def stop(self, grace_s: float) -> None:
        """Let lines at work end within the grace, give back the others, and write it all down."""
        self._is_stopping.set()
        self.ring()
        await asyncio.wait(self._loops)  # not cancelled: they may be in a transaction
        given_back = list(self._ready)
        self._ready.clear()
        if at_work := {*self._running, *self._steps.values()}:
            await asyncio.wait(at_work, timeout=grace_s)
        given_back += self._running.values()
        await _cancel([*self._running, *self._steps.values()])
        await self._runner.drain()
        for work in given_back:
            self._ended.put_nowait(Ended(work.claim, GIVEN_BACK))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.join(), max(grace_s, 1.0))
        if self._writer is not None:
            await _cancel([self._writer])

    @property
    def num_running(self) -> int:
        return len(self._running)

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        """A round that fails is logged and tried again: the truth is in the database."""
        while work == self._write or not self._is_stopping.is_set():
            try:
                await work()
            except Exception as error:
                log.warning("dispatcher_fault", work=work.__name__, error=repr(error))
                await self._pause(AFTER_FAULT_S)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_stopping.wait(), seconds)

    async def _keep_leases(self) -> None:
        await self._pause(self._pace.lease_s / 3)
        if self._running or self._ready:
            await self._queue.renew(self._owner)

    async def _keep_jobs(self) -> None:
        """One look at all jobs: take over what was abandoned, start the steps that are due."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_news.wait(), self._pace.tick_s)
        self._has_news.clear()
        if self._is_stopping.is_set():
            return
        if await self._queue.recover():
            self._look_for_lines()
        now = self._clock.now()
        async with self._database.reading() as session:
            batches = await BatchRepository(session).unfinished()
            waiting = await runnable(session, batches, now)
        for batch in batches:
            is_free = batch.lease_until is None or batch.lease_until < now
            if batch.has_step_due(now) and is_free and len(self._steps) < STEPS_AT_ONCE:
                self._take_step(batch.id)
        self._is_urgent = any(Candidate.of(batch, now).is_urgent for batch in waiting)
        if waiting:
            self._look_for_lines()

    def _look_for_lines(self) -> None:
        self._may_have_lines = True
        self._wakes.set()

    async def _sweep_files(self) -> None:
        await self._pause(SWEEP_S)
        await self._files.sweep()

    def _take_step(self, batch_id: str) -> None:
        if batch_id not in self._steps:
            task = asyncio.create_task(self._step(batch_id))
            self._steps[batch_id] = task
            task.add_done_callback(lambda _: self._steps.pop(batch_id, None))

    async def _step(self, batch_id: str) -> None:
        now = self._clock.now()
        async with self._database.unit_of_work() as session:
            until = now + timedelta(seconds=self._pace.lease_s)
            batch = await BatchRepository(session).lease(batch_id, now, until)
        if batch is None:
            return
        try:
            await self._advance(batch)
        except Exception as error:
            log.warning("batch_step_failed", batch=batch_id, error=repr(error))
            return  # its lease ends, then it is tried again
        async with self._database.unit_of_work() as session:
            await BatchRepository(session).change(batch, {"lease_until": None})
        if batch.status == "validating":
            self.ring()

    async def _advance(self, batch: Batch) -> None:
        if batch.status == "validating":
            await self._intake.validate(batch)
        else:
            await self._closing.close(batch)

    async def _feed(self) -> None:
        """Keep the engine's spare capacity full, and some lines at hand."""
        self._wakes.clear()
        await self._give_back_stopped()
        room = self._capacity.room(len(self._running), is_urgent=self._is_urgent)
        while room > 0 and self._ready and not self._is_stopping.is_set():
            self._start(self._ready.popleft())
            room -= 1
        if len(self._ready) < (self._pace.concurrency + 1) // 2 and self._may_have_lines:
            await self._claim()
        if room > 0 and self._ready:
            return
        is_held_up = self._ready or self._may_have_lines  # by room, which may come unannounced
        with suppress(TimeoutError):
            pause_s = POLL_S if is_held_up else self._pace.tick_s
            await asyncio.wait_for(self._wakes.wait(), pause_s)

    async def _give_back_stopped(self) -> None:
        """Lines at hand do not start once their job is paused, cancelled or past its window."""
        while self._ready and self._clock.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = self._clock.monotonic()  # a ring from here on is not missed
            stopped = await self._queue.stopped({work.job.id for work in self._ready})
            for work in self._ready:
                if work.job.id in stopped:
                    self._ended.put_nowait(Ended(work.claim, GIVEN_BACK))
            self._ready = deque(work for work in self._ready if work.job.id not in stopped)

    async def _claim(self) -> None:
        if not self._capacity.room(0, is_urgent=self._is_urgent):
            return
        self._may_have_lines = False  # a ring from here on is not missed
        work = await self._queue.claim(self._owner, self._pace.concurrency)
        self._ready.extend(work)
        if work:
            self._may_have_lines = True

    def _start(self, work: Work) -> None:
        task = asyncio.create_task(self._run(work))
        self._running[task] = work
        self._is_idle.clear()
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not self._running:
            self._is_idle.set()
        self._wakes.set()

    async def _run(self, work: Work) -> None:
        outcome = await self._runner.run(*work)
        self._ended.put_nowait(Ended(work.claim, outcome))

    async def _write(self) -> None:
        """Everything that has ended, in one transaction."""
        ended = [await self._ended.get()]
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), LINGER_S)
        while not self._ended.empty():
            ended.append(self._ended.get_nowait())
        try:
            is_any_job_done = await self._queue.close(ended)
        except BaseException:
            for each in ended:  # they stay ours, and are written when the database is back
                self._ended.put_nowait(each)
            raise
        finally:
            for _ in ended:
                self._ended.task_done()
        if is_any_job_done or any(each.outcome is GIVEN_BACK for each in ended):
            self._has_news.set()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
