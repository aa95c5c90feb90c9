"""The simulator's quick mode runs every experiment, and its machines are what they say."""

from pathlib import Path

import pytest
from tests.sim.experiments import jobs
from tests.sim.measure import jain
from tests.sim.report import summarise, to_table
from tests.sim.simulator import FittedSteps, LinearSteps
from tests.sim.timeline import draw_timeline

from loraplex_engine.scheduling.step_model import StepLoad


@pytest.mark.slow
def test_quick_mode_reports_every_experiment(tmp_path: Path) -> None:
    rows = [job.run() for job in jobs(is_quick=True)]
    table = to_table(summarise(rows))
    assert {"co-serving", "goodput", "adapters", "traces"} <= set(table.replace("|", " ").split())
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


def test_jain_is_one_for_equals_and_one_over_n_for_a_monopoly() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
