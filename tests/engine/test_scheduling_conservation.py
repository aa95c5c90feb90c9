"""T9 and T10: nothing is lost or read from the wrong place, and everything ends; in any order of events."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.sim.fuzz import Fuzz

from loraplex_engine.scheduling.filling import Draft
from loraplex_engine.scheduling.flows import Request
from loraplex_engine.scheduling.policy import BlockCopy, StepPlan
from loraplex_engine.scheduling.preemption import HostTier, Preemptor, is_busy
from loraplex_engine.scheduling.residency import Residency

NUM_ACTIONS = 40
seeds = st.integers(0, 2**32)
quiet = [HealthCheck.too_slow]
phases = [Phase.explicit, Phase.generate]  # a smaller seed is no simpler case


def survives(seed: int) -> None:
    fuzz = Fuzz(seed)
    for _ in range(NUM_ACTIONS):
        fuzz.act()
    fuzz.drain()


def is_caught(check: Callable[[int], None], tries: int) -> bool:
    for seed in range(tries):
        try:
            check(seed)
        except (AssertionError, LookupError):
            return True
    return False


@settings(max_examples=100, deadline=None, suppress_health_check=quiet, phases=phases)
@given(seeds)
def test_blocks_slots_and_contents_are_conserved(seed: int) -> None:
    survives(seed)


@pytest.mark.parametrize("seed", [3451337992, 68266755])
def test_waiting_requests_with_a_slot_do_not_keep_out_streams_that_lent_theirs(seed: int) -> None:
    survives(seed)


def aborted_ones_hold_nothing(seed: int) -> int:
    """Every tier's preempted requests end; says how many did."""
    fuzz = Fuzz(seed)
    for lane in fuzz.policy.lanes:
        lane.target = replace(lane.target, may_abort=True)
    for _ in range(NUM_ACTIONS):
        fuzz.act()
    fuzz.drain()
    return list(fuzz.ended.values()).count("preempted")


def test_requests_aborted_by_a_preemption_hold_nothing() -> None:
    assert sum(map(aborted_ones_hold_nothing, range(50))) > 0, "the test does not test"


def test_an_aborted_request_that_keeps_its_books_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HostTier, "drop", lambda self, request: None)
    assert is_caught(lambda seed: aborted_ones_hold_nothing(seed) and None, 50)


def test_a_prefill_preempted_within_a_step_gets_no_tokens_of_it() -> None:
    for seed in range(300):
        fuzz = Fuzz(seed)
        for _ in range(NUM_ACTIONS):
            fuzz.act()
        while fuzz.flight:
            fuzz.complete(fuzz.flight.popleft())
        policy, draft = fuzz.policy, Draft(fuzz.now, budget_s=10.0)
        for request in [r for lane in policy.lanes for r in lane.prefills if not is_busy(r)]:
            policy.preemptor.preempt(request, draft.plan)
            policy.filler.chunk(request, draft)
            assert (request.seq.block_table, draft.plan.items) == ([], [])
            return
    pytest.fail("no prefill was found")


def test_a_block_that_is_not_copied_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = HostTier.restore

    def lossy(self: HostTier, request: Request, cached: int) -> list[BlockCopy]:
        return whole(self, request, cached)[1:]

    monkeypatch.setattr(HostTier, "restore", lossy)
    assert is_caught(survives, 300)


def test_a_slot_that_is_not_released_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Residency, "release", lambda self, request: None)
    assert is_caught(survives, 50)


def test_blocks_freed_under_a_step_in_flight_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loraplex_engine.scheduling.preemption.is_busy", lambda request: False)
    assert is_caught(survives, 300)


def everyone_gets_on(seed: int) -> None:
    """T10: equals, admitted without a forecast: blocks run out again and again, yet all end."""
    fuzz = Fuzz(seed)
    fuzz.eos_share = 0.0
    fuzz.policy.admission.has_memory = lambda request: True  # type: ignore[method-assign]
    sent = [fuzz.send(tuple(range(8 * i, 8 * i + 8)), 60) for i in range(10)]
    fuzz.drain()
    assert sent[0].num_preemptions == 0, "the oldest has to yield to nobody"
    assert max(seq.num_preemptions for seq in sent) > 1, "the test does not test"
    # One more than the bound within a tier: the oldest may always take from the worn.
    assert max(seq.num_preemptions for seq in sent) <= fuzz.config.max_preemptions + 1


def test_equals_short_of_blocks_all_get_on() -> None:
    for seed in range(6):
        everyone_gets_on(seed)


def test_equals_that_never_yield_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preemptor, "_candidates", lambda self, request, step: [])
    assert is_caught(everyone_gets_on, 1)


def test_equals_that_take_from_their_elders_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Request] = []  # over all tries
    preempt = Preemptor.preempt

    def count(self: Preemptor, request: Request, plan: StepPlan) -> None:
        taken.append(request)
        assert len(taken) < 2000, "livelock: equals preempt each other without end"
        preempt(self, request, plan)

    def anybody(self: Preemptor, request: Request, step: int) -> list[Request]:
        return [other for other in self._idle(request.flow.lane) if other is not request]

    monkeypatch.setattr(Preemptor, "preempt", count)
    monkeypatch.setattr(Preemptor, "_candidates", anybody)
    assert is_caught(everyone_gets_on, 20)
