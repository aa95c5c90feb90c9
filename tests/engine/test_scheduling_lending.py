"""More adapters than slots: streams ahead of their deadlines lend their slot, and have it back in time."""

import math
from dataclasses import replace

import pytest
from tests.sim.experiments import Job
from tests.sim.simulator import LinearSteps, SimulatedSlots, Simulation
from tests.sim.workloads import Arrival, Script, Workload

from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_engine.scheduling.residency import Residency

LOAD_S = 0.04


def without_lending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Residency, "lend_to", lambda self, request, now: None)
    monkeypatch.setattr(Residency, "_pause", lambda self, now: None)


class Gaps:
    """The longest time between two tokens of a stream, by request."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self.longest: dict[str, float] = {}

    def __call__(self, run: Simulation, plan: StepPlan, seconds: float) -> None:
        end = run.now + seconds
        for item in plan.items:
            if item.samples:
                name = item.seq.request_id
                gap = end - self.last.get(name, end)
                self.longest[name] = max(gap, self.longest.get(name, 0.0))
                self.last[name] = end


def two_on_one_slot(config: SchedulerConfig) -> tuple[Simulation, Gaps]:
    gaps = Gaps()
    tenants = tuple(
        Script(name, (Arrival(at, name, "interactive", 100, 400, name),))
        for name, at in (("ada", 0.0), ("bob", 0.5))
    )
    run = Simulation(
        "hfs",
        Workload(tenants),
        config=config,
        steps=LinearSteps(),
        slots=SimulatedSlots(1, lambda adapter: LOAD_S),
        on_step=gaps,
    )
    run.run(until_s=30.0)
    return run, gaps


def test_two_streams_share_one_slot_in_time() -> None:
    config = SchedulerConfig()
    run, gaps = two_on_one_slot(config)
    target = config.targets["interactive"]
    for outcome in run.outcomes:
        assert outcome.ttft_s is not None
        assert outcome.last_s is not None
        assert outcome.ttft_s <= target.ttft_s
        assert outcome.tpot_s <= target.tpot_s
    longest = max(gaps.longest.values())
    assert config.lend_slack_s < longest <= config.max_pause_s + config.lend_slack_s + 2 * LOAD_S
    assert run.slots.num_loads > 3, "the test does not test"


def test_without_lending_the_second_waits_for_the_end_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_lending(monkeypatch)
    run, _ = two_on_one_slot(SchedulerConfig())
    first, second = run.outcomes
    assert first.last_s is not None
    assert second.first_s is not None
    assert second.first_s > first.last_s


def test_a_stream_with_no_time_to_spare_lends_nothing() -> None:
    run, gaps = two_on_one_slot(replace(SchedulerConfig(), lend_slack_s=math.inf))
    assert max(gaps.longest.values()) < SchedulerConfig().lend_slack_s
    assert run.slots.num_loads == 2


def ttft_p99(slots: int) -> float:
    row = Job("adapters", f"{slots} slots", "hfs", rate=6.0, seed=0, requests=400).run()
    assert isinstance(row["ttft_p99"], float)
    return row["ttft_p99"]


def test_four_adapters_a_slot_cost_little_of_the_first_token() -> None:
    assert ttft_p99(8) <= 3 * ttft_p99(32)


def test_without_lending_they_cost_much(monkeypatch: pytest.MonkeyPatch) -> None:

    without_lending(monkeypatch)
    assert ttft_p99(8) > 3 * ttft_p99(32)
