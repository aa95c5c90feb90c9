"""The parity self-test: passes on what is served rightly, notices what is not, and runs beside steps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.smollm2 import ADAPTERS
from tests.engine.test_peft_variants import TIED, UNTIED, make_world, save_variant
from tests.engine.tiny import make_model
from tests.until import wait_until

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.report import ParityCheck
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import adapter_cache, load_model
from loraplex_engine.config import Dtype, EngineConfig
from loraplex_engine.messages import CheckAdapter
from loraplex_engine.model.decoder import projection_layout
from loraplex_engine.offline import Offline, Prompt
from loraplex_engine.pace import Pace

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft.*"),
]

PICKED = {
    name: UNTIED[name]
    for name in (
        "plain",
        "dora and biases",
        "dora on the vocabulary",
        "lora_bias",
        "whole embedding and norms",
        "whole projections",
        "tokens of both",
    )
}


def wait_for_checks(cache: AdapterCache, count: int) -> tuple[ParityCheck, ...]:
    wait_until(lambda: len(cache.checks) >= count)
    return cache.checks


def put(store: AdapterStore, model: Path, folder: Path) -> str:
    base = BaseModel.from_checkpoint(None, model)
    return store.put(folder, base=base, limits=Limits(32)).version


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_tied", [False, True])
def test_whatever_is_served_rightly_passes(is_tied: bool, dtype: Dtype, tmp_path: Path) -> None:
    shape = {"tie_word_embeddings": True} if is_tied else {"attention_bias": True, "mlp_bias": True}
    world = make_world(tmp_path, TIED if is_tied else PICKED, **shape)
    config = EngineConfig(model=tmp_path, dtype=dtype, max_lora_rank=32, threads=1)
    store = AdapterStore(tmp_path / "store")
    versions = {put(store, tmp_path, folder): n for n, folder in world.adapters.items()}
    cache = adapter_cache(config, load_model(config), store)
    for version in versions:
        cache.check(version)
    checks = wait_for_checks(cache, len(versions))
    cache.close()
    limit = 1e-5 if dtype == "float32" else 3e-2
    wrong = {versions[c.version]: c for c in checks if not c.passed or (c.error or 1) > limit}
    assert wrong == {}
    assert all((check.effect or 0) > 0.05 for check in checks)


@pytest.mark.slow
def test_the_demo_adapters_pass_on_the_real_model(demo_model: Path, tmp_path: Path) -> None:
    """In bfloat16, as `make serve` has them: none is near the limit."""
    config = EngineConfig(model=demo_model, dtype="bfloat16")
    store = AdapterStore(tmp_path / "store")
    cache = adapter_cache(config, load_model(config), store)
    for name in ("acme", "globex", "initech"):
        cache.check(put(store, demo_model, ADAPTERS[name]))
    checks = wait_for_checks(cache, 3)
    cache.close()
    assert all(check.passed and (check.error or 1) < 3e-2 for check in checks), checks


class Stand:
    """A tiny model with one adapter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_model(folder)
        save_variant(folder, folder / "adapter", UNTIED["plain"], 0)
        self.config = EngineConfig(model=folder, max_lora_rank=8, threads=1)
        self.store = AdapterStore(folder / "store")
        self.version = put(self.store, folder, folder / "adapter")


def test_an_adapter_that_is_computed_wrongly_does_not_pass(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    model = load_model(stand.config)
    cache = adapter_cache(stand.config, model, stand.store)
    first = model.decoder.layers[0]
    mistaken = replace(first.qkv, name="layers.1.qkv")  # looks for another layer's factors
    model.decoder.layers[0] = replace(first, qkv=mistaken)
    cache.check(stand.version)
    [check] = wait_for_checks(cache, 1)
    cache.close()
    assert not check.passed
    assert check.error is not None
    assert check.error > 0.01


def test_beside_steps_it_pauses_after_each_projection(tmp_path: Path) -> None:
    stand, pauses = Stand(tmp_path), list[float]()
    pace = Pace(clock=lambda: 0.0, sleep=pauses.append)  # whoever stepped did so just now
    model = replace(load_model(stand.config), pace=pace)
    cache = adapter_cache(stand.config, model, stand.store)
    cache.check(stand.version)
    wait_for_checks(cache, 1)
    assert pauses == [], "nobody runs a step"
    offline = Offline(stand.config, model, cache)
    offline.run([Prompt(range(20), adapter=stand.version)])
    cache.check(stand.version)
    while len(cache.checks) < 2:
        pace.step()
    cache.close()
    slices = sum(len(spec.slices) for spec in projection_layout(model.config))
    assert len(pauses) >= slices


def test_a_version_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    cache = adapter_cache(stand.config, load_model(stand.config), stand.store)
    cache.check("0" * 64)
    [check] = wait_for_checks(cache, 1)
    cache.close()
    assert (check.passed, check.error) == (False, None)
    assert (check.reason or "").startswith("unknown_version")


def test_a_check_asked_of_the_engine_is_in_its_statistics_and_disturbs_no_step(
    tmp_path: Path,
) -> None:
    stand = Stand(tmp_path)
    model = load_model(stand.config)
    cache = adapter_cache(stand.config, model, stand.store)
    offline = Offline(stand.config, model, cache, records_logits=True)
    prompts = [Prompt(range(i, i + 20), adapter=stand.version) for i in range(6)]
    quiet = [each.logits for each in offline.run(prompts)]
    offline.engine.submit(CheckAdapter(stand.version))
    offline.engine.submit(CheckAdapter(stand.version))  # the same one
    beside = []
    while not offline.engine.stats().adapter_checks:
        beside += [each.logits for each in offline.run(prompts)]
    [check] = offline.engine.stats().adapter_checks
    cache.close()
    assert check.passed
    assert check.host_bytes == 4 * 4 * sum(  # rank 4 of float32 numbers
        shape.in_features + shape.out_features
        for name, shape in BaseModel.from_checkpoint(None, tmp_path).modules.items()
        if name.endswith("_proj")
    )
    assert check.device_bytes is not None
    assert check.device_bytes > check.host_bytes, "the head's rows are taken too"
    assert beside
    for number, logits in enumerate(beside):
        expected = quiet[number % len(prompts)]
        assert logits is not None
        assert expected is not None
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
