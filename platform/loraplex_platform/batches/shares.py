"""Whose lines run next: tenants share equally, a tenant's own jobs go by urgency and priority."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from loraplex_platform.batches.models import Batch

MARGIN = 1.25  # how much slower than so far a job may get and still end in its window
FIRST_LINES_BY = 0.75  # part of the window after which a job that did nothing is urgent


class Candidate(NamedTuple):
    """A job with lines that wait."""

    batch_id: str
    tenant_id: str
    priority: int
    is_urgent: bool
    running: int
    pending: int
    created_at: datetime

    @classmethod
    def of(cls, batch: Batch, now: datetime) -> "Candidate":
        return cls(
            batch.id,
            batch.tenant_id,
            batch.priority,
            is_urgent(batch, now),
            batch.running,
            batch.pending,
            batch.created_at,
        )


def share(count: int, candidates: Sequence[Candidate]) -> dict[str, int]:
    """How many lines to take of each job: the tenant that has least gets the next one."""
    running: defaultdict[str, int] = defaultdict(int)
    queues: defaultdict[str, list[Candidate]] = defaultdict(list)
    for job in sorted(candidates, key=_rank):
        running[job.tenant_id] += job.running
        queues[job.tenant_id].append(job)
    given: defaultdict[str, int] = defaultdict(int)
    for _ in range(count):
        waiting = [tenant for tenant, jobs in queues.items() if jobs]
        if not waiting:
            break
        tenant = min(waiting, key=lambda t: (running[t], not queues[t][0].is_urgent, t))
        job = queues[tenant][0]
        given[job.batch_id] += 1
        running[tenant] += 1
        if given[job.batch_id] == job.pending:
            queues[tenant].pop(0)
    return dict(given)


def is_urgent(batch: Batch, now: datetime) -> bool:
    """Whether the job, at the rate it had so far, would miss its window."""
    assert batch.in_progress_at is not None
    window, left = batch.expires_at - batch.created_at, batch.expires_at - now
    done = batch.completed + batch.failed
    if done == 0:
        return left < window * (1 - FIRST_LINES_BY)
    worked = max(now - batch.in_progress_at, timedelta(0))
    return worked / done * (batch.total - done) * MARGIN > left


def _rank(job: Candidate) -> tuple[bool, int, datetime, str]:
    return (not job.is_urgent, -job.priority, job.created_at, job.batch_id)
