"""The step model learns a machine, the length model a tenant, the forecast a common peak."""

import random

import pytest

from loraplex_engine.scheduling.forecast import LengthModel, peak_tokens
from loraplex_engine.scheduling.step_model import StepLoad, StepModel


def random_load(rng: random.Random) -> StepLoad:
    load = StepLoad()
    load.add_decodes(count := rng.randint(0, 60), count * rng.randint(100, 2000))
    if rng.random() < 0.3:
        load.add(rng.randint(0, 2000), rng.randint(16, 1500))
    return load


def true_seconds(load: StepLoad) -> float:
    return 0.011 + 9e-5 * load.num_tokens + 1e-7 * load.context + 2e-9 * load.attention


def test_step_model_learns_a_machine_within_three_percent() -> None:
    rng, model = random.Random(0), StepModel()
    for _ in range(3_000):
        load = random_load(rng)
        model.observe(load, true_seconds(load) * rng.uniform(0.98, 1.02))
    loads = [random_load(rng) for _ in range(300)]
    errors = [abs(model.predict(load) / true_seconds(load) - 1) for load in loads]
    assert sum(errors) / len(errors) < 0.03
    assert model.mean_error < 0.03
    assert 0 < model.margin < 0.1


def test_thousands_of_decode_steps_do_not_unlearn_prefill() -> None:
    rng, model = random.Random(0), StepModel()
    for _ in range(1_000):
        load = random_load(rng)
        model.observe(load, true_seconds(load))
    for _ in range(20_000):
        load = StepLoad()
        load.add_decodes(count := rng.randint(1, 20), count * 500)
        model.observe(load, true_seconds(load) * rng.uniform(0.99, 1.01))
    load = StepLoad()
    load.add(0, 1_500)
    assert model.predict(load) == pytest.approx(true_seconds(load), rel=0.1)


def test_room_is_the_longest_chunk_that_fits() -> None:
    model = StepModel(0.006, 3e-5, 4e-8)
    load = StepLoad()
    load.add_decodes(10, 5_000)
    room = model.room(load, 0.05, start=700)
    load.add(700, room)
    assert 0.05 - 2 * model.per_token_s < model.predict(load) <= 0.05 + 1e-9


def test_lengths_follow_the_tenant_and_what_is_generated() -> None:
    rng, model = random.Random(0), LengthModel()
    for _ in range(500):
        model.observe("short", "a", "standard", rng.randint(8, 15))
        model.observe("long", "a", "standard", rng.randint(512, 1023))
    assert model.quantile(0.7, "short", "a", "standard") < 32
    assert 512 <= model.quantile(0.7, "long", "a", "standard") < 1024
    assert model.quantile(0.7, "short", "a", "standard", generated=600) > 600


def test_quantiles_rise_with_their_share() -> None:
    model = LengthModel()
    for length in range(1, 400):
        model.observe("t", None, "batch", length)
    quantiles = [model.quantile(q / 10, "t", None, "batch") for q in range(1, 10)]
    assert quantiles == sorted(quantiles)


def test_peak_is_that_of_growing_together() -> None:
    rng = random.Random(0)
    for _ in range(200):
        rows = [(rng.randint(1, 30), rng.randint(1, 50)) for _ in range(rng.randint(1, 8))]
        held_at = [sum(held + step for left, held in rows if left >= step) for step in range(1, 31)]
        assert peak_tokens(rows) == max(held_at)
