"""Which lines run next, and how many: pure rules."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.platform_stand import letter_engine

from loraplex_engine.messages import EngineStats, SequencePhase, SequenceStats
from loraplex_platform.batches.capacity import STALE_S, Capacity
from loraplex_platform.batches.line_runner import outcome_of
from loraplex_platform.batches.models import Batch
from loraplex_platform.batches.outcomes import Failed, Retry, retry_delay_s
from loraplex_platform.batches.shares import Candidate, is_urgent, share
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.errors import QuotaExceeded, QuotaHeld

NOW = datetime(2026, 1, 1, tzinfo=UTC)
jobs = st.lists(
    st.builds(
        Candidate,
        st.uuids().map(str),
        st.sampled_from("abc"),
        st.integers(-2, 2),
        st.booleans(),
        st.integers(0, 5),
        st.integers(1, 9),
        st.just(NOW),
    ),
    max_size=6,
    unique_by=lambda job: job.batch_id,
)


@given(st.integers(0, 40), jobs)
def test_shares_take_all_there_is_and_never_more(count: int, candidates: list[Candidate]) -> None:
    given_ = share(count, candidates)
    pending = {job.batch_id: job.pending for job in candidates}
    assert sum(given_.values()) == min(count, sum(pending.values()))
    assert all(0 < n <= pending[batch_id] for batch_id, n in given_.items())


@given(st.integers(0, 40), jobs)
def test_a_tenant_that_got_less_had_no_more_to_run(count: int, candidates: list[Candidate]) -> None:
    """Max-min fairness: nobody gets a line while somebody with fewer waits for one."""
    given_ = share(count, candidates)
    running, left, got = Counter[str](), Counter[str](), Counter[str]()
    for job in candidates:
        running[job.tenant_id] += job.running + given_.get(job.batch_id, 0)
        left[job.tenant_id] += job.pending - given_.get(job.batch_id, 0)
        got[job.tenant_id] += given_.get(job.batch_id, 0)
    for poor in (tenant for tenant in left if left[tenant]):
        assert all(running[rich] <= running[poor] + 1 for rich in got if got[rich])


def candidate(name: str, tenant: str = "a", **changes: object) -> Candidate:
    return Candidate(name, tenant, 0, False, 0, 10, NOW)._replace(**changes)


def test_a_tenants_urgent_job_is_first_then_the_one_of_higher_priority() -> None:
    usual, high = candidate("usual"), candidate("high", priority=5)
    urgent = candidate("urgent", priority=-5, is_urgent=True)
    assert share(10, [usual, high, urgent]) == {"urgent": 10}
    assert share(10, [usual, high]) == {"high": 10}
    assert share(15, [usual, high]) == {"high": 10, "usual": 5}


def batch(done: int, worked_h: float, left_h: float) -> Batch:
    created = NOW - timedelta(hours=24 - left_h)
    return Batch(
        created_at=created,
        expires_at=NOW + timedelta(hours=left_h),
        in_progress_at=NOW - timedelta(hours=worked_h),
        total=100,
        completed=done,
        failed=0,
    )


@pytest.mark.parametrize(
    ("done", "worked_h", "left_h", "urgent"),
    [
        (50, 4, 20, False),
        (50, 18, 6, True),
        (0, 1, 23, False),
        (0, 19, 5, True),
        (99, 23, 1, False),
    ],
)
def test_a_job_is_urgent_when_it_would_miss_its_window(
    done: int, worked_h: float, left_h: float, urgent: bool
) -> None:
    assert is_urgent(batch(done, worked_h, left_h), NOW) is urgent


class Reading:
    """An engine's client of which only the statistics count."""

    def __init__(self, **values: object) -> None:
        stats = letter_engine().stats
        assert stats is not None
        self.stats: EngineStats | None = replace(stats, **values)  # type: ignore[arg-type]


def waiting(phase: SequencePhase = "waiting") -> SequenceStats:
    return SequenceStats("r", "t", "batch", None, phase, None, 1, 0, 0.0)


def room(running: int, *, is_urgent: bool = False, **values: object) -> int:
    engine = Reading(**values)
    capacity = Capacity(engine, ManualClock(), limit=20)  # type: ignore[arg-type]
    return capacity.room(running, is_urgent=is_urgent)


def test_room_follows_what_live_traffic_leaves() -> None:
    assert room(18, spare=1.0) == 2
    assert room(8, spare=0.5) == 2
    assert room(8, spare=0.25) == 0
    assert room(0, spare=0.0) == 0
    assert room(0, spare=1.0, draining=True) == 0


def test_lines_that_wait_in_the_engine_hold_others_back() -> None:
    assert room(7, spare=1.0, sequences=(waiting(),) * 7) == 1
    assert room(8, spare=1.0, sequences=(waiting("parked"),) * 8) == 0


def test_an_urgent_job_gets_a_little_even_when_nothing_is_spare() -> None:
    assert room(0, spare=0.0, is_urgent=True) == 2
    assert room(2, spare=0.0, is_urgent=True) == 0
    assert room(0, spare=0.0, draining=True, is_urgent=True) == 0


def test_an_old_reading_means_that_nothing_is_spare() -> None:
    engine, clock = Reading(spare=1.0, sequence_number=1), ManualClock()
    capacity = Capacity(engine, clock, limit=20)  # type: ignore[arg-type]
    assert capacity.room(0) > 0
    clock.advance(STALE_S + 0.1)
    assert capacity.room(0) == 0
    assert capacity.room(0, is_urgent=True) == 0
    assert engine.stats is not None
    engine.stats = replace(engine.stats, sequence_number=2)
    assert capacity.room(0) > 0
    engine.stats = None
    assert capacity.room(0) == 0


def test_tries_are_ever_more_patient_up_to_a_bound() -> None:
    fault = Retry("fault", is_counted=True)
    assert [retry_delay_s(fault, n) for n in (1, 2, 3, 99)] == [1, 2, 4, 300]
    assert retry_delay_s(Retry("limit", is_counted=False, after_s=7), 3) == 7


def test_a_line_is_tried_again_when_others_hold_its_money_and_fails_when_it_is_spent() -> None:
    held = outcome_of(QuotaHeld("held", retry_after_s=2.0), "req_1")
    assert held == Retry("held", is_counted=False, after_s=2.0)
    assert isinstance(outcome_of(QuotaExceeded("spent"), "req_1"), Failed)
