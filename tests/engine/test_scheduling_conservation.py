"""T9 and T10: nothing is lost or read from the wrong place, and everything ends; in any order of events."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.sim.fuzz import Fuzz

from loraplex_engine.scheduling.flows import Request
from loraplex_engine.scheduling.policy import BlockCopy, StepPlan
from loraplex_engine.scheduling.preemption import HostTier, Preemptor
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


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=quiet, phases=phases)
@given(seeds)
def test_blocks_slots_and_contents_are_conserved_at_length(seed: int) -> None:
    survives(seed)


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


def never_preempted_too_often(seed: int) -> None:
    """Equals whose outputs are far longer than forecast: blocks run out again and again."""
    fuzz = Fuzz(seed)
    fuzz.eos_share = 0.0
    for _ in range(200):
        fuzz.policy.admission.lengths.observe("a", None, "batch", 1)
    sent = [fuzz.send(tuple(range(8 * i, 8 * i + 8)), 60) for i in range(10)]
    fuzz.drain()
    assert sum(seq.num_preemptions for seq in sent) > 0, "the test does not test"
    assert max(seq.num_preemptions for seq in sent) <= fuzz.config.max_preemptions


def test_equals_do_not_take_blocks_from_each_other_for_ever() -> None:
    for seed in range(10):
        never_preempted_too_often(seed)


def test_without_seniority_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def oldest_first(
        self: Preemptor, request: Request, short: int, plan: StepPlan, step: int
    ) -> bool:
        others = [r for lane in self.lanes for r in (*lane.decodes, *lane.prefills)]
        idle = [r for r in others if r is not request and r.seq.num_scheduled == r.seq.num_computed]
        for victim in sorted(idle, key=lambda r: r.number)[:1]:
            self.preempt(victim, plan)
        return True

    monkeypatch.setattr(Preemptor, "_reclaim", oldest_first)
    assert is_caught(never_preempted_too_often, 10)
