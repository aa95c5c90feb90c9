"""The simulator's quick mode runs every experiment, and its machines are what they say."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sim.experiments import CHECKS, ENDLESS, EXPERIMENTS, config_for, jobs
from tests.sim.fairness import Fairness, endless, judge
from tests.sim.measure import Measured, jain, measure
from tests.sim.report import summarise, summarise_checks, to_table
from tests.sim.simulator import FittedSteps, LinearSteps, Simulation, StepTimes
from tests.sim.timeline import draw_timeline
from tests.sim.workloads import co_serving

from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_engine.scheduling.step_model import StepLoad


@pytest.mark.slow
def test_quick_mode_reports_every_experiment(tmp_path: Path) -> None:
    rows = [job.run() for job in jobs(is_quick=True)]
    table = to_table(summarise([row for row in rows if row["experiment"] not in CHECKS]))
    assert EXPERIMENTS.keys() <= set(table.replace("|", " ").split())
    checks = summarise_checks([row for row in rows if row["experiment"] in CHECKS])
    assert [line["experiment"] for line in checks] == ["fairness", "fairness", "static"]
    assert draw_timeline(tmp_path / "timeline.png", seconds=3.0).stat().st_size > 10_000


def test_fitted_steps_reproduce_what_was_measured() -> None:
    machine, samples = LinearSteps(), []
    for count in range(1, 200):
        load = StepLoad()
        load.add_decodes(count, count * 37 % 5_000 + count)
        samples.append((load, machine.seconds(load)))
    fitted = FittedSteps.from_samples(samples)
    load = samples[77][0]
    assert fitted.seconds(load) == pytest.approx(machine.seconds(load), rel=0.03)


def served_by_weight(requests: int = 600) -> Fairness:
    weights, depths = ENDLESS["weights 1:2:4"]
    return judge(endless(weights, depths), config_for("hfs"), seed=0, requests=requests)


def test_tenants_that_always_wait_stay_within_their_bound() -> None:
    fairness = served_by_weight()
    assert max(fairness.gap_ratios) <= 1
    assert fairness.share_ratio > 0.75


@pytest.mark.slow
def test_without_their_weights_they_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hfs, "set_share", lambda self, share: None)
    fairness = served_by_weight()
    assert max(fairness.gap_ratios) > 1
    assert fairness.share_ratio < 0.5


@pytest.mark.slow
def test_windows_of_twenty_times_the_bound_are_even() -> None:
    fairness = served_by_weight(requests=5_000)
    assert len(fairness.jain) >= 2
    assert min(fairness.jain) >= 1 / (1 + 0.05**2)


def test_jain_is_one_for_equals_and_one_over_n_for_a_monopoly() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_a_machine_fitted_to_the_steps_of_another_serves_like_it() -> None:
    samples: list[tuple[StepLoad, float]] = []

    def note(run: Simulation, plan: StepPlan, seconds: float) -> None:
        load = StepLoad()
        for item in plan.items:
            load.add(item.start, item.num_tokens)
        samples.append((load, seconds))

    def served(
        steps: StepTimes, on_step: Callable[[Simulation, StepPlan, float], None] | None = None
    ) -> Measured:
        run = Simulation("hfs", co_serving(4.0), steps=steps, on_step=on_step)
        run.run(live_requests=60)
        return measure(run)

    machine = served(LinearSteps(noise=0.02), note)
    fitted = served(FittedSteps.from_samples(samples))
    assert fitted.step_s == pytest.approx(machine.step_s, rel=0.05)
    assert fitted.batch_service == pytest.approx(machine.batch_service, rel=0.1)
