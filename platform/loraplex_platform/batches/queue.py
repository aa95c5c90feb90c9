"""The queue of lines: claimed by one process at a time, closed by the last one that claimed."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.batches.line_repository import Claim, LineRepository
from loraplex_platform.batches.line_runner import Job
from loraplex_platform.batches.models import Batch
from loraplex_platform.batches.outcomes import (
    MAX_ATTEMPTS,
    Done,
    Failed,
    Outcome,
    Retry,
    retry_delay_s,
    set_aside,
)
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.batches.rights import principal_of
from loraplex_platform.batches.shares import Candidate, share
from loraplex_platform.db.database import Database
from loraplex_platform.files.service import FileService
from loraplex_platform.kit.clock import Clock
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.books import Books
from loraplex_platform.usage.drift_repository import DriftRepository
from loraplex_platform.usage.facts import UsageFacts

log = structlog.get_logger(__name__)
RECOVERED_AT_ONCE = 1000


class Work(NamedTuple):
    """A claimed line with its text."""

    job: Job
    claim: Claim
    raw: bytes


class Ended(NamedTuple):
    """A claimed line after its try."""

    claim: Claim
    outcome: Outcome


class LineQueue:
    def __init__(
        self, database: Database, files: FileService, books: Books, clock: Clock, lease_s: float
    ) -> None:
        self._database = database
        self._files = files
        self._books = books
        self._clock = clock
        self._lease = timedelta(seconds=lease_s)

    async def claim(self, owner: str, count: int) -> list[Work]:
        """Up to so many lines, shared among tenants, with their text."""
        now = self._clock.now()
        claimed: list[tuple[Batch, Claim]] = []
        async with self._database.unit_of_work() as session:
            lines, batches = LineRepository(session), BatchRepository(session)
            running = await runnable(session, await batches.unfinished(), now)
            shares = share(count, [Candidate.of(batch, now) for batch in running])
            taken: Counter[str] = Counter()
            for batch in sorted(running, key=lambda b: b.id):
                if batch.id not in shares:
                    continue
                until = now + self._lease
                claims = await lines.claim(batch.id, shares[batch.id], owner, now, until)
                claimed += [(batch, claim) for claim in claims]
                taken[batch.id] = len(claims)
            for batch_id in sorted(taken):
                await batches.count(batch_id, {"running": taken[batch_id]})
        urgent = {batch.id: Candidate.of(batch, now).is_urgent for batch, _ in claimed}
        texts = await asyncio.to_thread(self._read, claimed)
        return [
            Work(Job(batch.id, principal_of(batch), batch.endpoint, urgent[batch.id]), claim, raw)
            for (batch, claim), raw in zip(claimed, texts, strict=True)
        ]

    async def stopped(self, batch_ids: Collection[str]) -> set[str]:
        """Those of the jobs of which no line may be started any more, or for now."""
        async with self._database.reading() as session:
            batches = await BatchRepository(session).those(batch_ids)
            able = await _startable(session, batches, self._clock.now())
        return {*batch_ids} - {batch.id for batch in able}

    async def renew(self, owner: str) -> None:
        async with self._database.unit_of_work() as session:
            await LineRepository(session).renew(owner, self._clock.now() + self._lease)

    async def close(self, ended: Sequence[Ended]) -> bool:
        """One transaction for all: results, usage events and counters, each line once.

        Whether the last line of a job was among them.
        """
        now, facts, lost = self._clock.now(), list[UsageFacts](), list[dict[str, Any]]()
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        async with self._database.unit_of_work() as session:
            lines, batches = LineRepository(session), BatchRepository(session)
            ours = await lines.still_ours([claim for claim, _ in ended])
            ends: dict[Claim, dict[str, Any]] = {}
            for claim, outcome in ended:
                lost += _lost(claim, outcome, now, is_ours=claim in ours)
                if claim not in ours:
                    log.warning("batch_line_discarded", batch=claim.batch_id, line=claim.line_no)
                    continue
                closed = self._closed(claim, outcome)
                ends[claim] = _values(closed, claim, now)
                counts[claim.batch_id].update(_counts(closed, claim))
                if isinstance(closed, Done):
                    facts.append(closed.facts)
            await lines.close(ends)
            is_any_done = await _add(batches, counts, now)
            await DriftRepository(session).add_lost_work(lost)
            if facts:
                await self._books.post(session, facts)
        return is_any_done

    async def recover(self) -> int:
        """Lines whose owner is gone are to be claimed again; returns how many there were."""
        now = self._clock.now()
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        async with self._database.unit_of_work() as session:
            lines, batches = LineRepository(session), BatchRepository(session)
            abandoned = await lines.abandoned(now, RECOVERED_AT_ONCE)
            ends: dict[Claim, dict[str, Any]] = {}
            for line in abandoned:
                claim = Claim(
                    line.batch_id, line.line_no, line.offset, line.num_bytes, line.tokens,
                    line.attempts, line.epoch,
                )  # fmt: skip
                retry = Retry("its process ended", is_counted=True, after_s=0.0)
                closed = self._closed(claim, retry)
                ends[claim] = _values(closed, claim, now)
                counts[claim.batch_id].update(_counts(closed, claim))
            await lines.close(ends)
            await _add(batches, counts, now)
        return len(abandoned)

    def _closed(self, claim: Claim, outcome: Outcome) -> Outcome:
        """What a try comes to: one too many sets the line aside."""
        if isinstance(outcome, Retry) and outcome.is_counted and claim.attempts >= MAX_ATTEMPTS:
            log.warning("batch_line_set_aside", batch=claim.batch_id, line=claim.line_no)
            return set_aside(claim.attempts, outcome.reason)
        return outcome

    def _read(self, claimed: Sequence[tuple[Batch, Claim]]) -> list[bytes]:
        """The lines' texts; each file is opened once."""
        by_file: dict[str, list[Claim]] = {}
        for batch, claim in claimed:
            by_file.setdefault(batch.input_file_id, []).append(claim)
        found: dict[Claim, bytes] = {}
        for file_id, claims in by_file.items():
            with self._files.open_held(file_id) as file:
                for claim in sorted(claims, key=lambda c: c.offset):
                    file.seek(claim.offset)
                    found[claim] = file.read(claim.num_bytes)
        return [found[claim] for _, claim in claimed]


async def _add(
    batches: BatchRepository, counts: Mapping[str, Mapping[str, int]], now: datetime
) -> bool:
    """Count, in one order of jobs for everybody; whether a job is done with that."""
    is_any_done = False
    for batch_id in sorted(counts):
        await batches.count(batch_id, counts[batch_id])
        is_any_done |= await batches.finalize_if_done(batch_id, now)
    return is_any_done


def _lost(claim: Claim, outcome: Outcome, now: datetime, *, is_ours: bool) -> list[dict[str, Any]]:
    """What an engine made that no event tells of: the platform's cost."""
    facts = outcome.facts if isinstance(outcome, Done) else outcome.lost
    if facts is None or (is_ours and isinstance(outcome, Done)):
        return []
    made = facts.completion_tokens + facts.discarded_tokens
    row = {"id": f"{claim.name}#{claim.epoch}", "tenant_id": facts.tenant_id, "at": now}
    return [row | {"completion_tokens": made}] if made else []


async def runnable(
    session: AsyncSession, batches: Sequence[Batch], now: datetime
) -> Sequence[Batch]:
    """Jobs of which lines may be claimed."""
    return await _startable(session, [batch for batch in batches if batch.pending > 0], now)


async def _startable(
    session: AsyncSession, batches: Sequence[Batch], now: datetime
) -> Sequence[Batch]:
    """Jobs of which claimed lines may be started; those of suspended tenants wait."""
    able = [batch for batch in batches if _is_going_on(batch, now)]
    inactive = await TenantRepository(session).inactive(sorted({b.tenant_id for b in able}))
    return [batch for batch in able if batch.tenant_id not in inactive]


def _is_going_on(batch: Batch, now: datetime) -> bool:
    is_open = batch.status == "in_progress" and batch.expires_at > now
    return is_open and batch.paused_at is None


def _values(outcome: Outcome, claim: Claim, now: datetime) -> dict[str, Any]:
    """The line's columns after its try."""
    match outcome:
        case Done(request_id, body, _):
            return {"state": "done", "status_code": 200, "result_id": request_id, "result": body}
        case Failed(request_id, status_code, body):
            return {
                "state": "failed",
                "status_code": status_code,
                "result_id": request_id,
                "result": body,
            }
        case Retry():
            attempts = claim.attempts - (0 if outcome.is_counted else 1)
            again: dict[str, Any] = {"state": "pending", "attempts": attempts}
            if delay_s := retry_delay_s(outcome, claim.attempts):
                again["not_before"] = now + timedelta(seconds=delay_s)
            return again


def _counts(outcome: Outcome, claim: Claim) -> dict[str, int]:
    """What changes in the job's counters."""
    match outcome:
        case Done(_, _, facts):
            return {
                "running": -1,
                "completed": 1,
                "enqueued_tokens": -claim.tokens,
                "input_tokens": facts.prompt_tokens,
                "cached_tokens": facts.cached_tokens,
                "output_tokens": facts.completion_tokens,
            }
        case Failed():
            return {"running": -1, "failed": 1, "enqueued_tokens": -claim.tokens}
        case Retry():
            return {"running": -1}
